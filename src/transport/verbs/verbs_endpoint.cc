// The life of a VerbsEndpoint: introduction, completions, what must be done before its end.
#include "transport/verbs/verbs_endpoint.h"

#include <algorithm>

#include "base/log.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

/// A peer that has not finished may still wait for the acknowledgement of what has just arrived here, which
/// the device sends by itself, but not without the queue pair.
constexpr milliseconds kLinger{50};
constexpr std::size_t kCompletionsAtOnce = 16;
/// In one turn, before others have theirs.
constexpr int kMostPolls = 16;

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<VerbsCore> core, std::vector<OpenPort*> ports)
    : ControlledEndpoint(std::move(core), kMaxControlBytes),
      ports_(std::move(ports)),
      outgoing_(own_sizes().rendezvous) {}

Status VerbsEndpoint::make_queues() {
  ONEBIT_ASSIGN_OR_RETURN(queues_, VerbsQueues::make(ports_, core_->settings, own_sizes()));
  return Status();
}

Introduction VerbsEndpoint::introduction() const {
  Introduction made = queues_->introduction();
  made.announced_only = verbs_core().with_gpus;
  return made;
}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::connect(std::shared_ptr<VerbsCore> core,
                                                              std::size_t device, const Handle& handle,
                                                              std::span<const std::byte> hello) {
  ONEBIT_ASSIGN_OR_RETURN(auto ports, core->ports(device));
  std::unique_ptr<VerbsEndpoint> made(new VerbsEndpoint(std::move(core), std::move(ports)));
  ONEBIT_RETURN_IF_ERROR(made->make_queues());
  ONEBIT_ASSIGN_OR_RETURN(auto control,
                          made->core_->control->connect(
                              0, handle, encode_hello(hello, encode_introduction(made->introduction()))));
  made->begin_connecting(std::move(control), hello);
  return made;
}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::accepted(std::shared_ptr<VerbsCore> core,
                                                               std::size_t device,
                                                               std::unique_ptr<Endpoint> control) {
  ONEBIT_ASSIGN_OR_RETURN(auto ports, core->ports(device));
  std::unique_ptr<VerbsEndpoint> made(new VerbsEndpoint(std::move(core), std::move(ports)));
  made->control_ = std::move(control);
  VerbsEndpoint& self = *made;
  const auto begin = [&self]() -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const SplitHello hello, split_hello(self.control_->hello()));
    self.hello_.assign(hello.users.begin(), hello.users.end());
    ONEBIT_ASSIGN_OR_RETURN(const Introduction introduction, decode_introduction(hello.transports));
    ONEBIT_RETURN_IF_ERROR(self.make_queues());
    ONEBIT_RETURN_IF_ERROR(self.join(introduction));
    return self.say(self.said_[0], encode_introduction(self.introduction()));
  };
  if (const Status begun = begin(); !begun.ok()) {
    self.control_->abort(begun);  // the peer hears why
    return begun.with_context(self.peer());
  }
  self.become_ready();
  return made;
}

VerbsEndpoint::~VerbsEndpoint() {
  if (state() != State::kFailed) drop();
}

/// From here on this end can receive.
Status VerbsEndpoint::join(const Introduction& introduction) {
  ONEBIT_RETURN_IF_ERROR(queues_->connect(introduction));
  peer_sizes_ = introduction.sizes;
  peer_ports_ = introduction.ports.size();
  announced_only_ = introduction.announced_only || verbs_core().with_gpus;
  incoming_.resize(peer_sizes_.rendezvous);
  under_way_.resize(queues_->data_pairs());
  std::string names;
  for (const OpenPort* const port : ports_) {
    names += formatted("{}{}", names.empty() ? "" : ", ", port->port().name());
  }
  log(LogLevel::kTrace, "transport: {} over {} ({}), {} data pairs", peer(), names,
      fabric_of(ports_.front()->port(), ports_.front()->address()), queues_->data_pairs());
  return Status();
}

Status VerbsEndpoint::take_control(ControlKind kind, std::span<const std::byte> bytes) {
  const bool connecting = state() == State::kConnecting;
  if (kind == ControlKind::kIntroduction && connecting) {
    ONEBIT_ASSIGN_OR_RETURN(const Introduction introduction, decode_introduction(bytes));
    ONEBIT_RETURN_IF_ERROR(join(introduction));
    open_ = true;
    become_ready();
    return say(said_[1], encode_ready());
  }
  if (kind == ControlKind::kReady && !connecting && !open_) {
    open_ = true;
    return Status();
  }
  return Status(Code::kDataError, "what it said on the control connection comes out of turn");
}

// --- Completions ---

bool VerbsEndpoint::poll() {
  bool any = false;
  std::array<ibv_wc, kCompletionsAtOnce> completions;
  for (int turn = 0; queues_ != nullptr && broken_.ok() && turn < kMostPolls; ++turn) {
    const auto count = queues_->poll(completions);
    Status status = count.status();
    for (std::size_t i = 0; status.ok() && i < *count; ++i) {
      const ibv_wc& completion = completions[i];
      if (completion.status != IBV_WC_SUCCESS) {
        on_failed(completion);
        return true;
      }
      status = on_completion(completion);
    }
    if (!status.ok()) {
      fail(std::move(status));
      return true;
    }
    if (*count > 0) any = true;
    if (*count < completions.size()) break;
  }
  if (Status flushed = poll_flush(any); !flushed.ok()) fail(flushed.with_context(peer()));
  if (any) {
    check_finished();
    pump();
  }
  return any;
}

Status VerbsEndpoint::on_completion(const ibv_wc& completion) {
  const std::uint32_t index = VerbsQueues::index(completion.wr_id);
  switch (VerbsQueues::of(completion.wr_id)) {
    case VerbsQueues::Of::kArrival:
      return on_arrival(completion);
    case VerbsQueues::Of::kSegmentArrival:
      return on_segment_arrival(completion);
    case VerbsQueues::Of::kSegmentSent:
      return on_segment_sent(index);
    case VerbsQueues::Of::kMessageSent:
      queues_->free_slot(static_cast<int>(index));
      return Status();
  }
  return Status(Code::kInternalError, "a completion of nothing");
}

Status VerbsEndpoint::arm() {
  if (queues_ == nullptr) return Status();
  if (flush_ != nullptr) ONEBIT_RETURN_IF_ERROR(flush_->arm());
  return queues_->arm();
}

void VerbsEndpoint::on_failed(const ibv_wc& completion) {
  const OpenPort& port = queues_->port_of(completion);
  const std::string over = port.port().name();
  if (completion.status == IBV_WC_RETRY_EXC_ERR) {
    return on_broken(
        Status::error(Code::kRemoteError,
                      "{}: no answer over {} after {} retries (its port, link or machine is down? "
                      "ONEBIT_IB_TIMEOUT, ONEBIT_IB_RETRY_CNT)",
                      peer(), over, core_->settings.ib_retries));
  }
  on_broken(Status::error(Code::kRemoteError, "{}: the connection over {} broke: {}", peer(), over,
                          port.library().wc_status_str(completion.status)));
}

bool VerbsEndpoint::owns(const ibv_qp* pair, const ibv_cq* completions) const noexcept {
  if (queues_ == nullptr) return false;
  return pair != nullptr ? queues_->owns(pair) : queues_->owns(completions);
}

// --- Ending ---

void VerbsEndpoint::drop() noexcept {
  queues_.reset();  // before the requests end: nothing may be written to their memory any more
  flush_.reset();
  fail_all(flushes_);
  for (Outgoing& each : outgoing_) {
    if (Request* const request = std::exchange(each.request, nullptr)) end(*request, Request::State::kFailed);
    each.memory = {};
  }
  for (Incoming& each : incoming_) {
    if (Request* const request = std::exchange(each.request, nullptr)) end(*request, Request::State::kFailed);
    each.memory = {};
  }
  fail_all(sends_);
  fail_all(posted_);
  writing_.clear();
  arrivals_.clear();
  to_advertise_.clear();
}

bool VerbsEndpoint::all_sent() const {
  return !incoming_.empty() && sends_.empty() && flushes_.empty() && queues_->all_sent() &&
         std::none_of(outgoing_.begin(), outgoing_.end(),
                      [](const Outgoing& o) { return o.request != nullptr; });
}

bool VerbsEndpoint::all_taken(std::uint32_t messages) const {
  return next_arrival_ == messages && arrivals_.empty() &&
         std::none_of(incoming_.begin(), incoming_.end(),
                      [](const Incoming& i) { return i.request != nullptr; });
}

bool VerbsEndpoint::settled(Clock::time_point now) const {
  if (std::exchange(arrived_, counters_.wire_received) != counters_.wire_received) last_arrival_ = now;
  return goodbye_received_ || now - last_arrival_ >= kLinger;
}

}  // namespace onebit::transport
