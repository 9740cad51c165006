#include "transport/tcp/tcp_listener.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/log.h"
#include "transport/tcp/tcp_endpoint.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxCandidates = 256;
/// A silent candidate that is younger is not dropped to make room; the next wait in the kernel's queue
/// meanwhile.
constexpr milliseconds kGrace{1000};
constexpr milliseconds kCandidateTime{5000};
/// How long the flows of one endpoint may come one after the other.
constexpr milliseconds kGroupTime{30000};
constexpr milliseconds kRetryTick{50};
constexpr int kAcceptsPerTurn = 64;
constexpr milliseconds kLogEvery{1000};

}  // namespace

Result<std::unique_ptr<TcpListener>> TcpListener::open(std::shared_ptr<TcpCore> core, const Device& device) {
  std::unique_ptr<TcpListener> made(new TcpListener(std::move(core)));
  made->key_ = bootstrap::random_key();
  HandleContents contents{{}, made->key_};
  for (std::size_t i = 0; i <= device.more_addresses.size(); ++i) {
    SocketAddress any_port = i == 0 ? device.address : device.more_addresses[i - 1];
    any_port.set_port(0);
    ONEBIT_ASSIGN_OR_RETURN(UniqueSocket fd, listen_on(any_port, made->core_->settings.port_range));
    ONEBIT_ASSIGN_OR_RETURN(const SocketAddress bound, local_address(fd.get()));
    contents.addresses.push_back(bound);
    Door& door = made->doors_.emplace_back(*made, std::move(fd));
    ONEBIT_RETURN_IF_ERROR(made->core_->poller.add(door.fd.get(), door));
  }
  made->handle_ = encode_handle(contents);
  made->core_->listeners.push_back(made.get());
  return made;
}

TcpListener::~TcpListener() {
  for (Candidate& candidate : candidates_) core_->discard(candidate.fd);
  for (Group& group : groups_) {
    for (UniqueSocket& fd : group.flows) core_->discard(fd);
  }
  for (Group& group : complete_) {
    for (UniqueSocket& fd : group.flows) core_->discard(fd);
  }
  for (Door& door : doors_) core_->discard(door.fd);
  std::erase(core_->listeners, this);
}

Result<std::unique_ptr<Endpoint>> TcpListener::accept_into(const std::shared_ptr<TcpCore>& core) try {
  if (!complete_.empty()) {
    Group group = std::move(complete_.front());
    complete_.pop_front();
    auto made = TcpEndpoint::accepted(core, group.peer, std::move(group.flows), std::move(group.hello));
    if (!made.ok()) return made.status();
    return std::unique_ptr<Endpoint>(std::move(*made));
  }
  if (!broken_.ok()) return broken_;
  return std::unique_ptr<Endpoint>();
} catch (const std::exception& e) {
  return Status::error(Code::kSystemError, "accept: {}", e.what());
}

bool TcpListener::make_room() {
  const auto silent = std::find_if(candidates_.begin(), candidates_.end(),
                                   [](const Candidate& candidate) { return !candidate.readable; });
  if (silent == candidates_.end() || Clock::now() - silent->since < kGrace) return false;
  drop(*silent, Status(Code::kTimeout, "it said nothing, and its place was needed"));
  return true;
}

void TcpListener::take_connections(Door& door) {
  for (int taken = 0; door.readable; ++taken) {
    if (taken == kAcceptsPerTurn) return core_->poller.enqueue(door);
    if (candidates_.size() >= kMaxCandidates && !make_room()) return core_->ask_tick(kRetryTick);
    SocketAddress peer;
    Result<UniqueSocket> accepted = accept_from(door.fd.get(), &peer);
    if (!accepted.ok()) {
      // Strangers must not use up the file descriptors that the peers need.
      if (!candidates_.empty()) {
        make_room();
      } else {
        broken_ = accepted.status();
        core_->notable = true;
      }
      return core_->ask_tick(kRetryTick);
    }
    broken_ = Status();
    if (!*accepted) {
      door.readable = false;
      return;
    }
    candidates_.emplace_back(*this, std::move(*accepted), peer);
    Candidate& candidate = candidates_.back();
    candidate.self = std::prev(candidates_.end());
    const Settings& settings = core_->settings;
    Status ready = tune_tcp(candidate.fd.get(), settings.link_timeout, settings.tcp_sndbuf,
                            settings.tcp_rcvbuf, settings.traffic_class);
    if (ready.ok()) ready = core_->poller.add(candidate.fd.get(), candidate);
    if (!ready.ok()) {
      drop(candidate, ready);
      continue;
    }
    core_->ask_tick(kCandidateTime);
  }
}

void TcpListener::advance(Candidate& candidate) {
  using Step = bootstrap::Handshake::Step;
  for (;;) {
    const auto step = candidate.handshake.advance();
    if (!step.ok()) return drop(candidate, step.status());
    switch (*step) {
      case Step::kWantRead:
      case Step::kWantWrite:
        return;
      case Step::kWantAnswer:
        if (const Status sound = check_opening(candidate); sound.ok()) {
          candidate.handshake.answer({});
        } else {
          candidate.handshake.refuse(sound.message());
        }
        break;
      case Step::kDone:
        return join_group(candidate);
    }
  }
}

Status TcpListener::check_opening(Candidate& candidate) {
  ONEBIT_ASSIGN_OR_RETURN(candidate.opening, decode_opening(candidate.handshake.peer_payload()));
  const FlowOpening& opening = candidate.opening;
  for (const Group& group : groups_) {
    if (group.id != opening.endpoint_id) continue;
    if (group.flows.size() != opening.count || group.hello != opening.hello || group.flows[opening.index]) {
      return Status(Code::kDataError, "two flows of one endpoint contradict each other");
    }
  }
  return Status();
}

void TcpListener::join_group(Candidate& candidate) {
  core_->poller.remove(candidate.fd.get());
  FlowOpening& opening = candidate.opening;
  auto group = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Group& g) { return g.id == opening.endpoint_id; });
  if (group == groups_.end()) {
    group = groups_.emplace(groups_.end());
    group->id = opening.endpoint_id;
    group->flows.resize(opening.count);
    group->hello = std::move(opening.hello);
    core_->ask_tick(kGroupTime);
  }
  UniqueSocket& place = group->flows[opening.index];
  if (place) {  // two at once with one index: neither is the right one
    core_->discard(place);
    --group->have;
  }
  place = std::move(candidate.fd);
  group->last = Clock::now();
  if (opening.index == 0) group->peer = candidate.peer;
  candidates_.erase(candidate.self);
  if (++group->have < group->flows.size()) return;
  complete_.push_back(std::move(*group));
  groups_.erase(group);
  core_->notable = true;
}

void TcpListener::drop(Candidate& candidate, const Status& why) {
  log_stranger(candidate.peer, why.message());
  core_->discard(candidate.fd);
  candidates_.erase(candidate.self);
}

void TcpListener::log_stranger(const SocketAddress& peer, std::string_view why) {
  if (log_level() < LogLevel::kInfo) return;
  const Clock::time_point now = Clock::now();
  if (now - last_log_ < kLogEvery) {
    ++unlogged_;
    return;
  }
  last_log_ = now;
  log(LogLevel::kInfo, "transport: a connection from {} was dropped: {} ({} more since the last such line)",
      peer.to_string(), why, unlogged_);
  unlogged_ = 0;
}

void TcpListener::on_tick(Clock::time_point now) {
  for (Door& door : doors_) {
    if (door.readable) core_->poller.enqueue(door);
  }
  while (!candidates_.empty() && now - candidates_.front().since >= kCandidateTime) {
    // This thread may have been away for long: what the candidate has sent meanwhile counts.
    const Candidate* const oldest = &candidates_.front();
    advance(candidates_.front());
    if (!candidates_.empty() && &candidates_.front() == oldest) {
      drop(candidates_.front(), Status(Code::kTimeout, "no handshake within 5 s"));
    }
  }
  std::erase_if(groups_, [&](Group& group) {
    if (now - group.last < kGroupTime) return false;
    log_stranger(group.peer, "not all its flows came");
    for (UniqueSocket& fd : group.flows) core_->discard(fd);
    return true;
  });
  if (!candidates_.empty()) {
    core_->ask_tick(std::chrono::ceil<milliseconds>(candidates_.front().since + kCandidateTime - now));
  }
  if (!groups_.empty()) core_->ask_tick(milliseconds(1000));
}

}  // namespace onebit::transport
