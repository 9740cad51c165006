// The life of a VerbsEndpoint: introduction, completions, ending in order, failing.
#include "transport/verbs/verbs_endpoint.h"

#include <algorithm>

#include "base/log.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kControlTag = 1;
constexpr milliseconds kCloseTick{2};
/// A peer that has not finished may still wait for the acknowledgement of what has just arrived here, which
/// the device sends by itself, but not without the queue pair.
constexpr milliseconds kLinger{50};
constexpr std::size_t kCompletionsAtOnce = 16;
/// In one turn, before others have theirs.
constexpr int kMostPolls = 16;

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<VerbsCore> core, OpenPort& port)
    : core_(std::move(core)), port_(port), outgoing_(core_->sizes.rendezvous) {
  const std::size_t room = core_->endpoints.size() + 1;
  core_->endpoints.reserve(room);
  core_->failed.reserve(room);
  core_->reporting.reserve(room);
}

Status VerbsEndpoint::make_queues() {
  ONEBIT_ASSIGN_OR_RETURN(queues_, VerbsQueues::make(port_, core_->settings, core_->sizes));
  return Status();
}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::connect(std::shared_ptr<VerbsCore> core,
                                                              std::size_t port, const Handle& handle,
                                                              std::span<const std::byte> hello) {
  ONEBIT_ASSIGN_OR_RETURN(OpenPort* const open, core->port(port));
  std::unique_ptr<VerbsEndpoint> made(new VerbsEndpoint(std::move(core), *open));
  ONEBIT_RETURN_IF_ERROR(made->make_queues());
  made->hello_.assign(hello.begin(), hello.end());
  VerbsCore& shared = *made->core_;
  ONEBIT_ASSIGN_OR_RETURN(
      made->control_, shared.control->connect(0, handle, encode_hello(hello, made->queues_->introduction())));
  made->opening_deadline_ = Clock::now() + shared.settings.init_timeout;
  shared.ask_tick(shared.settings.init_timeout);
  shared.control_due = true;
  shared.endpoints.push_back(made.get());
  return made;
}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::accepted(std::shared_ptr<VerbsCore> core,
                                                               std::size_t port,
                                                               std::unique_ptr<Endpoint> control) {
  ONEBIT_ASSIGN_OR_RETURN(OpenPort* const open, core->port(port));
  std::unique_ptr<VerbsEndpoint> made(new VerbsEndpoint(std::move(core), *open));
  made->control_ = std::move(control);
  VerbsEndpoint& self = *made;
  const auto begin = [&self]() -> Status {
    ONEBIT_ASSIGN_OR_RETURN(Hello hello, decode_hello(self.control_->hello()));
    self.hello_ = std::move(hello.users);
    ONEBIT_RETURN_IF_ERROR(self.make_queues());
    ONEBIT_RETURN_IF_ERROR(self.join(hello.introduction));
    return self.say(self.said_[0], encode_introduction(self.queues_->introduction()));
  };
  if (const Status begun = begin(); !begun.ok()) {
    self.control_->abort(begun);  // the peer hears why
    return begun.with_context(self.peer());
  }
  self.state_ = State::kReady;
  self.core_->control_due = true;
  self.core_->endpoints.push_back(&self);
  return made;
}

VerbsEndpoint::~VerbsEndpoint() {
  queues_.reset();
  if (state_ != State::kFailed) fail_requests();
  control_.reset();
  std::erase(core_->endpoints, this);
  std::erase(core_->failed, this);
  std::erase(core_->reporting, this);
}

// --- The control connection ---

Status VerbsEndpoint::say(Request& request, std::vector<std::byte> what) {
  std::vector<std::byte>& bytes = saying_[static_cast<std::size_t>(&request - said_.data())];
  bytes = std::move(what);
  return control_->send(request, bytes.data(), bytes.size(), kControlTag, 0);
}

Status VerbsEndpoint::hear() {
  return control_->receive(heard_, hearing_.data(), hearing_.size(), kControlTag, 0);
}

/// From here on this end can receive.
Status VerbsEndpoint::join(const Introduction& introduction) {
  ONEBIT_RETURN_IF_ERROR(queues_->connect(introduction));
  peer_sizes_ = introduction.sizes;
  incoming_.resize(peer_sizes_.rendezvous);
  under_way_.resize(queues_->data_pairs());
  log(LogLevel::kTrace, "transport: {} over {} ({}), {} data pairs", peer(), port_.port().name(),
      fabric_of(port_.port(), port_.address()), queues_->data_pairs());
  return Status();
}

void VerbsEndpoint::on_control() {
  if (state_ == State::kFailed) return;
  if (!hearing_begun_ && control_->state() == State::kReady) {
    if (Status begun = hear(); !begun.ok()) return fail(std::move(begun));
    hearing_begun_ = true;
  }
  while (hearing_begun_ && heard_.state == Request::State::kDone && !goodbye_received_) {
    auto message = decode_control(std::span(hearing_).first(heard_.bytes));
    Status taken = message.ok() ? take_control(*message) : message.status();
    if (taken.ok() && !goodbye_received_) taken = hear();
    if (!taken.ok()) return fail(taken.with_context(peer()));
  }
  if (control_->state() == State::kFailed) return fail(control_->status());
  if (!broken_.ok()) return fail(broken_);
  check_finished();
  pump();
}

Status VerbsEndpoint::take_control(const ControlMessage& message) {
  const bool connecting = state_ == State::kConnecting;
  if (message.kind == ControlKind::kIntroduction && connecting) {
    ONEBIT_RETURN_IF_ERROR(join(message.introduction));
    state_ = State::kReady;
    open_ = true;
    core_->notable = true;
    return say(said_[1], encode_ready());
  }
  if (message.kind == ControlKind::kReady && !connecting && !open_) {
    open_ = true;
    return Status();
  }
  if (message.kind == ControlKind::kGoodbye && !connecting) {
    goodbye_received_ = true;
    goodbye_messages_ = message.messages;
    return Status();
  }
  return Status(Code::kDataError, "what it said on the control connection comes out of turn");
}

Status VerbsEndpoint::check_usable(const Request& request) const {
  if (request.state == Request::State::kPending) {
    return Status(Code::kInvalidUsage, "the request is already pending");
  }
  if (state_ == State::kFailed) return status_;
  if (state_ == State::kConnecting) {
    return Status::error(Code::kInvalidUsage, "{}: not yet connected", peer());
  }
  return Status();
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
        on_broken(completion);
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
  return queues_ != nullptr ? queues_->arm() : Status();
}

/// The peer may have said why before its end went away: what it said is taken first, then on_control decides.
void VerbsEndpoint::on_broken(const ibv_wc& completion) {
  const std::string over = port_.port().name();
  if (goodbye_received_) {
    broken_ = Status::error(Code::kRemoteError,
                            "{}: has finished and closed the connection before it took all messages", peer());
  } else if (completion.status == IBV_WC_RETRY_EXC_ERR) {
    broken_ = Status::error(Code::kRemoteError,
                            "{}: no answer over {} after {} retries (its port, link or machine is down? "
                            "ONEBIT_IB_TIMEOUT, ONEBIT_IB_RETRY_CNT)",
                            peer(), over, core_->settings.ib_retries);
  } else {
    broken_ = Status::error(Code::kRemoteError, "{}: the connection over {} broke: {}", peer(), over,
                            port_.library().wc_status_str(completion.status));
  }
  core_->control_due = true;
}

bool VerbsEndpoint::owns(const ibv_qp* pair, const ibv_cq* completions) const noexcept {
  if (queues_ == nullptr) return false;
  return pair != nullptr ? queues_->owns(pair) : queues_->owns(completions);
}

// --- Ending ---

void VerbsEndpoint::end(Request& request, Request::State state) noexcept {
  request.state = state;
  core_->notable = true;
  if (!request.notify) return;
  if (ended_.empty()) core_->reporting.push_back(this);
  ended_.push(request);
  core_->poller.announce();
}

void VerbsEndpoint::report(std::vector<Request*>& completed) {
  while (Request* request = ended_.first()) {
    completed.push_back(request);
    ended_.pop();
  }
}

void VerbsEndpoint::fail_requests() noexcept {
  for (Outgoing& each : outgoing_) {
    if (Request* const request = std::exchange(each.request, nullptr)) end(*request, Request::State::kFailed);
    each.memory.reset();
  }
  for (Incoming& each : incoming_) {
    if (Request* const request = std::exchange(each.request, nullptr)) end(*request, Request::State::kFailed);
    each.memory.reset();
  }
  for (RequestList* list : {&sends_, &posted_}) {
    while (Request* request = list->pop()) end(*request, Request::State::kFailed);
  }
  writing_.clear();
  arrivals_.clear();
  to_advertise_.clear();
}

void VerbsEndpoint::fail(Status status) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  status_ = std::move(status);
  core_->failed.push_back(this);
  core_->notable = true;
  log(LogLevel::kInfo, "transport: {}", status_.message());
  queues_.reset();  // before the requests end: nothing may be written to their memory any more
  fail_requests();
  control_->abort(status_);
}

void VerbsEndpoint::abort(const Status& reason) noexcept try {
  fail(reason.ok() ? Status(Code::kAborted, "aborted") : reason);
} catch (...) {  // no memory for the text: without it
  queues_.reset();
  fail_requests();
  control_->abort(reason);
}

void VerbsEndpoint::finish() {
  if (finishing_ || state_ == State::kFailed) return;
  finishing_ = true;
  pump();
}

void VerbsEndpoint::try_goodbye() {
  if (!finishing_ || goodbye_sent_ || incoming_.empty() || !sends_.empty() || !queues_->all_sent()) return;
  if (std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& o) { return o.request != nullptr; }))
    return;
  if (Status said = say(said_[2], encode_goodbye(next_send_)); !said.ok()) return fail(std::move(said));
  goodbye_sent_ = true;
  control_->finish();
  core_->control_due = true;
  core_->ask_tick(kCloseTick);
}

/// Everything that the peer has sent before its goodbye is here and matched.
void VerbsEndpoint::check_finished() {
  if (!goodbye_received_ || state_ != State::kReady || next_arrival_ != goodbye_messages_ ||
      !arrivals_.empty()) {
    return;
  }
  if (std::any_of(incoming_.begin(), incoming_.end(), [](const Incoming& i) { return i.request != nullptr; }))
    return;
  if (!posted_.empty()) {
    return fail(Status::error(Code::kRemoteError,
                              "{}: has finished, and a message with tag {:#x} was still expected from it",
                              peer(), posted_.first()->tag));
  }
  state_ = State::kFinished;
  core_->notable = true;
  check_closed(Clock::now());
}

void VerbsEndpoint::check_closed(Clock::time_point now) {
  if (closed_ || !goodbye_sent_ || !usable()) return;
  if (std::exchange(arrived_, counters_.wire_received) != counters_.wire_received) last_arrival_ = now;
  if (!control_->closed() || (!goodbye_received_ && now - last_arrival_ < kLinger))
    return core_->ask_tick(kCloseTick);
  closed_ = true;
  core_->notable = true;
}

void VerbsEndpoint::on_tick(Clock::time_point now) {
  if (state_ == State::kConnecting) {
    if (now < opening_deadline_) {
      return core_->ask_tick(std::chrono::ceil<milliseconds>(opening_deadline_ - now));
    }
    return fail(Status::error(Code::kTimeout, "connect to {}: not accepted within {} s (ONEBIT_INIT_TIMEOUT)",
                              peer(), core_->settings.init_timeout.count() / 1000.0));
  }
  if (!goodbye_sent_ || closed_ || !usable()) return;
  core_->control_due = true;
  check_closed(now);
}

}  // namespace onebit::transport
