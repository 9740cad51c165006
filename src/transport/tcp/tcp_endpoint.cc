// The life of a TcpEndpoint: opening, ending in order, failing.
#include "transport/tcp/tcp_endpoint.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCloseTick{2};
constexpr unsigned kAttempts = 4;
/// Of all flows together: 0.8 ms at 10 Gbit/s, for the times that this thread is not on a processor.
constexpr std::size_t kUnsent = 1 << 20;
/// Unanswered retransmissions (or window probes) that make silence a dead link, not an idle peer.
constexpr unsigned kDeadRetransmits = 3;

/// Bytes that the peer's kernel has not acknowledged.
int unacknowledged(int fd) noexcept {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

bool is_dead(int fd, milliseconds limit, milliseconds& silence) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  silence = milliseconds(info.tcpi_last_ack_recv);
  return (info.tcpi_retransmits >= kDeadRetransmits || info.tcpi_probes >= kDeadRetransmits) &&
         silence >= limit;
}

}  // namespace

TcpEndpoint::TcpEndpoint(const std::shared_ptr<TcpCore>& core, const SocketAddress& peer,
                         std::span<const std::byte> hello)
    : CommonEndpoint(core), core_(core.get()), peer_(peer) {
  hello_.assign(hello.begin(), hello.end());
}

Result<std::unique_ptr<TcpEndpoint>> TcpEndpoint::connect(const std::shared_ptr<TcpCore>& core,
                                                          const Device& device, const HandleContents& to,
                                                          std::uint32_t flows,
                                                          std::span<const std::byte> hello) {
  const auto random = bootstrap::random_key();
  std::vector<SocketAddress> sources{device.address};
  sources.insert(sources.end(), device.more_addresses.begin(), device.more_addresses.end());
  std::unique_ptr<TcpEndpoint> made(
      new TcpEndpoint(core, with_scope_of(device.address, to.addresses.front()), hello));
  std::memcpy(&made->id_, random.data(), sizeof made->id_);
  made->key_ = to.key;
  made->expect_answer();
  const std::size_t count = std::max<std::size_t>({flows, sources.size(), to.addresses.size()});
  for (std::size_t i = 0; i < count; ++i) {
    made->flows_.push_back(std::make_unique<Flow>(*made));
    Flow& flow = *made->flows_.back();
    flow.source = sources[i % sources.size()];
    flow.destination = with_scope_of(flow.source, to.addresses[i % to.addresses.size()]);
    ONEBIT_RETURN_IF_ERROR(made->start(flow));
  }
  return made;
}

Result<std::unique_ptr<TcpEndpoint>> TcpEndpoint::accepted(const std::shared_ptr<TcpCore>& core,
                                                           const SocketAddress& peer,
                                                           std::vector<UniqueSocket> flows,
                                                           std::vector<std::byte> hello) {
  std::unique_ptr<TcpEndpoint> made(new TcpEndpoint(core, peer, hello));
  for (UniqueSocket& fd : flows) {
    made->flows_.push_back(std::make_unique<Flow>(*made));
    Flow& flow = *made->flows_.back();
    flow.fd = std::move(fd);
    ONEBIT_RETURN_IF_ERROR(made->core_->poller.add(flow.fd.get(), flow));
    flow.phase = Flow::Phase::kOpen;
    flow.end_hard(true);
    flow.limit_unsent(kUnsent / flows.size());
    flow.lend_from(made->core_->settings.tcp_zerocopy);
    flow.writable = true;  // readable comes from the set
  }
  made->open_flows_ = made->flows_.size();
  made->state_ = State::kReady;
  return made;
}

TcpEndpoint::~TcpEndpoint() {
  const Status gone(Code::kRemoteError, "this end of the connection was destroyed before it had finished");
  if (state_ == State::kConnecting) {  // nothing was said that could get lost: leave no port in TIME_WAIT
    for (const auto& flow : flows_) {
      if (flow->fd) flow->end_hard(true);
    }
  }
  if (state_ != State::kFailed) fail_requests();
  close_flows(gone);
}

// --- Opening ---

void TcpEndpoint::on_flow_ready(Flow& flow) {
  if (!flow.fd) return;
  if (flow.phase != Flow::Phase::kOpen) return advance_opening(flow);
  if (!usable()) return;  // other flows are still opening; what is told here is kept in the flags
  if (std::exchange(flow.has_reports, false)) take_returned(flow);
  read(flow);
  if (state_ == State::kFailed) return;
  if (flow.write_broken) return on_broken(flow);
  if (flow.writable) pump(kTurnBudget);
}

Status TcpEndpoint::start(Flow& flow) {
  flow.phase = Flow::Phase::kConnecting;
  flow.readable = flow.writable = flow.hung_up = false;
  ++flow.attempts;
  ONEBIT_ASSIGN_OR_RETURN(flow.fd, start_connect(flow.destination, flow.source));
  return core_->poller.add(flow.fd.get(), flow);
}

/// A listener in a flood of strangers may drop a peer before it has proved itself. It does not refuse it.
bool TcpEndpoint::try_again(Flow& flow, const Status& why) {
  if (why.code() != Code::kRemoteError || flow.handshake->refused() || flow.attempts >= kAttempts)
    return false;
  flow.handshake.reset();
  core_->discard(flow.fd);
  if (Status started = start(flow); !started.ok()) fail(std::move(started));
  return true;
}

void TcpEndpoint::advance_opening(Flow& flow) {
  if (flow.phase == Flow::Phase::kConnecting) {
    if (!flow.writable && !flow.hung_up) return;
    if (const int error = connect_error(flow.fd.get()); error != 0) {
      return fail(Status(
          Code::kRemoteError,
          Status::system(error, fmt::format("connect to {}", flow.destination.to_string())).message()));
    }
    const Settings& settings = core_->settings;
    if (Status tuned = tune_tcp(flow.fd.get(), settings.link_timeout, settings.tcp_sndbuf,
                                settings.tcp_rcvbuf, settings.traffic_class);
        !tuned.ok()) {
      return fail(tuned.with_context(peer()));
    }
    FlowOpening opening;
    opening.endpoint_id = id_;
    const auto own =
        std::find_if(flows_.begin(), flows_.end(), [&](const auto& f) { return f.get() == &flow; });
    opening.index = static_cast<std::uint16_t>(own - flows_.begin());
    opening.count = static_cast<std::uint16_t>(flows_.size());
    opening.hello = hello_;
    flow.handshake.emplace(flow.fd.get(), bootstrap::Role::kClient, key_, bootstrap::Purpose::kTransport,
                           encode_opening(opening));
    flow.phase = Flow::Phase::kHandshake;
  }
  const auto step = flow.handshake->advance();
  if (!step.ok()) {
    if (try_again(flow, step.status())) return;
    return fail(step.status().with_context(fmt::format("connect to {}", peer())));
  }
  if (*step == bootstrap::Handshake::Step::kDone) on_open(flow);
}

void TcpEndpoint::on_open(Flow& flow) {
  flow.phase = Flow::Phase::kOpen;
  flow.handshake.reset();
  flow.end_hard(true);
  flow.limit_unsent(kUnsent / flows_.size());
  flow.lend_from(core_->settings.tcp_zerocopy);
  // The handshake may have used up the edge that also told of what comes after it.
  flow.readable = flow.writable = true;
  if (++open_flows_ < flows_.size()) return;
  become_ready();
  for (const auto& each : flows_) core_->poller.enqueue(*each);
}

// --- Ending ---

void TcpEndpoint::fail_requests() noexcept {
  // A request with segments on several flows is met several times; one that is in `out` may still be queued.
  for (const auto& flow : flows_) {
    for (std::size_t i = flow->out_first; i < flow->out_count; ++i) {
      Request* const request = flow->out[i].request;
      if (request == nullptr || request->state != Request::State::kPending || request == sends_.first())
        continue;
      end(*request, Request::State::kFailed);
    }
    flow->out_first = flow->out_count = 0;
    returned_.clear();
    flow->lent.drop(returned_);
    for (const LentPayloads::Payload& payload : returned_) {
      Request& request = *payload.request;
      if (request.state != Request::State::kPending || &request == sends_.first()) continue;
      end(request, Request::State::kFailed);
    }
  }
  for (RequestList* list : {&sends_, &active_, &posted_}) fail_all(*list);
}

void TcpEndpoint::stop(const Status& why) noexcept {
  fail_requests();
  close_flows(why);
}

void TcpEndpoint::close_flows(const Status& reason) noexcept {
  for (const auto& flow : flows_) {
    if (core_->recent == flow.get()) core_->recent = nullptr;
    if (!flow->fd) continue;
    flow->take_peeked();
    if (flow->phase == Flow::Phase::kOpen) tell_peer(*flow, reason);
    core_->discard(flow->fd);
    flow->handshake.reset();
    flow->receiving = nullptr;
    flow->payload_left = 0;
    flow->begin = flow->end = 0;
    flow->staging = {};
  }
}

/// Best effort, where the stream is between two segments.
void TcpEndpoint::tell_peer(Flow& flow, const Status& reason) noexcept {
  if (flow.goodbye_sent || flow.write_broken || flow.at_end || !flow.at_boundary()) return;
  SegmentHeader header;
  header.kind = SegmentKind::kAbort;
  header.check = static_cast<std::uint32_t>(reason.code());
  const std::string& text = reason.message();
  header.segment_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(text.size(), kMaxReasonBytes));
  std::array<std::byte, kHeaderBytes> head;
  encode_header(header, head.data());
  std::array<iovec, 2> pieces{
      {{head.data(), head.size()}, {const_cast<char*>(text.data()), header.segment_bytes}}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  if (::sendmsg(flow.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  flow.end_hard(false);
  // To close a socket with unread bytes is to reset it, which may overtake the reason: they are thrown away.
  std::array<std::byte, 16 << 10> unread;
  for (int i = 0; i < 256; ++i) {
    if (::recv(flow.fd.get(), unread.data(), unread.size(), MSG_DONTWAIT) <= 0) break;
  }
}

void TcpEndpoint::on_end(Flow& flow) {
  if (flow.goodbye_received || flow.goodbye_ahead) return;
  switch (flow.end_error) {
    case 0:
    case ECONNRESET:
    case EPIPE:
      return fail(
          Status::error(Code::kRemoteError, "{}: closed the connection (the process ended?)", peer()));
    default:
      return fail(Status::error(Code::kRemoteError, "{}: {} (its link or machine is down?)", peer(),
                                Status::system(flow.end_error, "the connection broke").message()));
  }
}

/// A write has failed, and what the peer had sent has been read.
void TcpEndpoint::on_broken(Flow& flow) {
  if (!flow.goodbye_received && !flow.goodbye_ahead) {
    flow.end_error = flow.write_error;
    return on_end(flow);
  }
  // The peer has left in order. That matters only to messages that it did not take.
  const bool unsent = std::any_of(flow.out.begin() + static_cast<std::ptrdiff_t>(flow.out_first),
                                  flow.out.begin() + static_cast<std::ptrdiff_t>(flow.out_count),
                                  [](const Flow::OutSegment& segment) { return segment.request != nullptr; });
  take_returned(flow);
  if (unsent || !flow.lent.empty() || !sends_.empty()) {
    return fail(Status::error(Code::kRemoteError,
                              "{}: has finished and closed the connection before it took all messages",
                              peer()));
  }
  flow.out_first = flow.out_count = flow.out_written = 0;
  flow.goodbye_sent = true;
  peer_left_ = true;
  check_closed();
}

void TcpEndpoint::finish() {
  if (finishing_ || state_ == State::kFailed) return;
  finishing_ = true;
  pump(kInlineBudget);
}

void TcpEndpoint::check_closed() {
  if (closed_ || !finishing_ || !usable() || !sends_.empty()) return;
  for (const auto& flow : flows_) {
    if (!flow->goodbye_sent || flow->has_out() || !flow->lent.empty()) return;
  }
  // When the peer's goodbye has been read, nothing is left unread here, and the kernel delivers the rest
  // after close. Else a close could reset the connection: wait until the peer's kernel has everything.
  if (goodbyes_ < flows_.size()) {
    for (const auto& flow : flows_) {
      if (!flow->write_broken && unacknowledged(flow->fd.get()) > 0) return core_->ask_tick(kCloseTick);
    }
  }
  closed_ = true;
  core_->notable = true;
}

void TcpEndpoint::on_tick(Clock::time_point now) {
  if (waits_for_answer(now)) return;
  if (!usable()) return;
  check_closed();
  check_links();
}

void TcpEndpoint::check_links() {
  const milliseconds limit = core_->settings.link_timeout;
  for (const auto& flow : flows_) {
    if (!flow->maybe_unacknowledged) continue;
    if (unacknowledged(flow->fd.get()) == 0) {
      flow->maybe_unacknowledged = false;
      continue;
    }
    milliseconds silence{0};
    if (is_dead(flow->fd.get(), limit, silence)) {
      return fail(Status::error(Code::kRemoteError,
                                "{}: no answer for {:.1f} s (its link or machine is down?)", peer(),
                                static_cast<double>(silence.count()) / 1000));
    }
    core_->ask_tick(core_->link_tick);
  }
}

}  // namespace onebit::transport
