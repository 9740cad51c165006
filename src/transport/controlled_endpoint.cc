#include "transport/controlled_endpoint.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kControlTag = 1;
constexpr milliseconds kCloseTick{2};
constexpr std::uint64_t kMaxMessageBytes = 1ULL << 46;

}  // namespace

ControlledEndpoint::ControlledEndpoint(std::shared_ptr<ControlledCore> core, std::size_t most_control)
    : core_(std::move(core)), hearing_(most_control) {
  const std::size_t room = core_->endpoints.size() + 1;
  core_->failed.reserve(room);
  core_->reporting.reserve(room);
  core_->endpoints.push_back(this);
}

ControlledEndpoint::~ControlledEndpoint() {
  control_.reset();
  std::erase(core_->endpoints, this);
  std::erase(core_->failed, this);
  std::erase(core_->reporting, this);
}

// --- The control connection ---

void ControlledEndpoint::begin_connecting(std::unique_ptr<Endpoint> control,
                                          std::span<const std::byte> hello) {
  control_ = std::move(control);
  expect_answers(hello);
}

void ControlledEndpoint::begin_accepting(std::span<const std::byte> hello) {
  coming_ = true;
  expect_answers(hello);
}

void ControlledEndpoint::expect_answers(std::span<const std::byte> hello) {
  hello_.assign(hello.begin(), hello.end());
  const milliseconds limit = core_->settings.init_timeout;
  opening_deadline_ = Clock::now() + limit;
  core_->ask_tick(limit);
  core_->control_due = true;
}

void ControlledEndpoint::become_ready() {
  state_ = State::kReady;
  core_->notable = true;
  core_->control_due = true;
}

Status ControlledEndpoint::say(Request& request, std::vector<std::byte> what) {
  std::vector<std::byte>& bytes = saying_[static_cast<std::size_t>(&request - said_.data())];
  bytes = std::move(what);
  return control_->send(request, bytes.data(), bytes.size(), kControlTag, 0);
}

Status ControlledEndpoint::hear() {
  return control_->receive(heard_, hearing_.data(), hearing_.size(), kControlTag, 0);
}

void ControlledEndpoint::on_control() {
  if (state_ == State::kFailed) return;
  if (!hearing_begun_ && control_->state() == State::kReady) {
    if (Status begun = hear(); !begun.ok()) return fail(std::move(begun));
    hearing_begun_ = true;
  }
  while (hearing_begun_ && heard_.state == Request::State::kDone && !goodbye_received_) {
    Status taken = take(std::span(hearing_).first(heard_.bytes));
    if (taken.ok() && !goodbye_received_) taken = hear();
    if (!taken.ok()) return fail(taken.with_context(peer()));
  }
  if (control_->state() == State::kFailed) return fail(control_->status());
  if (Status problem = broken(); !problem.ok()) return fail(std::move(problem));
  check_finished();
  at_control_ = true;
  pump();
  at_control_ = false;
}

Status ControlledEndpoint::take(std::span<const std::byte> bytes) {
  if (bytes.empty()) return bad_control();
  const auto kind = static_cast<ControlKind>(bytes[0]);
  if (kind != ControlKind::kGoodbye) return take_control(kind, bytes);
  if (state_ == State::kConnecting) return bad_control();
  ONEBIT_ASSIGN_OR_RETURN(goodbye_messages_, decode_goodbye(bytes));
  goodbye_received_ = true;
  return Status();
}

void ControlledEndpoint::on_broken(Status status) {
  if (goodbye_received_) {
    status = Status::error(Code::kRemoteError,
                           "{}: has finished and closed the connection before it took all messages", peer());
  }
  broken_ = std::move(status);
  core_->control_due = true;
}

Status ControlledEndpoint::bad_data(std::string_view what) const {
  return Status::error(Code::kDataError, "{}: sent {}", peer(), what);
}

// --- Requests ---

Status ControlledEndpoint::prepare_send(Request& request, const void* data, std::size_t bytes,
                                        std::uint64_t tag, std::uint32_t check) {
  if (request.state == Request::State::kPending) {
    return Status(Code::kInvalidUsage, "the request is already pending");
  }
  if (state_ == State::kFailed) return status_;
  if (state_ == State::kConnecting) {
    return Status::error(Code::kInvalidUsage, "{}: not yet connected", peer());
  }
  if (finishing_) return Status::error(Code::kInvalidUsage, "{}: send after finish", peer());
  if (bytes > kMaxMessageBytes) return Status::error(Code::kInvalidArgument, "a message of {} bytes", bytes);
  request.state = Request::State::kPending;
  // Only read from.
  request.data = static_cast<std::byte*>(const_cast<void*>(data));
  request.capacity = request.bytes = bytes;
  request.transferred = request.assigned = 0;
  request.tag = tag;
  request.check = check;
  request.sequence = next_send_++;
  return Status();
}

Status ControlledEndpoint::post(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                                std::uint32_t check) {
  if (request.state == Request::State::kPending) {
    return Status(Code::kInvalidUsage, "the request is already pending");
  }
  if (state_ == State::kFailed) return status_;
  if (state_ == State::kConnecting) {
    return Status::error(Code::kInvalidUsage, "{}: not yet connected", peer());
  }
  if (state_ == State::kFinished) {
    return Status::error(Code::kRemoteError, "{}: has finished and sends no more messages", peer());
  }
  request.state = Request::State::kPending;
  request.data = static_cast<std::byte*>(data);
  request.capacity = capacity;
  request.bytes = 0;
  request.transferred = request.assigned = 0;
  request.tag = tag;
  request.check = check;
  posted_.push(request);
  return Status();
}

Request* ControlledEndpoint::find_posted(std::uint64_t tag, Request*& previous) const noexcept {
  previous = nullptr;
  Request* request = posted_.first();
  while (request != nullptr && request->tag != tag) {
    previous = request;
    request = request->next;
  }
  return request;
}

Result<Request*> ControlledEndpoint::posted_for(std::uint64_t tag, std::uint32_t check, std::uint64_t bytes) {
  Request* previous = nullptr;
  Request* const request = find_posted(tag, previous);
  if (request == nullptr) {
    if (!posted_.empty()) core_->notable = true;  // it blocks them
    return request;
  }
  if (check != request->check) {
    return Status::error(
        Code::kInvalidUsage,
        "{}: its message with tag {:#x} has check word {:#x}, here {:#x} is expected: the two "
        "ends do not do the same",
        peer(), tag, check, request->check);
  }
  if (bytes > request->capacity) {
    return Status::error(Code::kInvalidUsage,
                         "{}: its message with tag {:#x} has {} bytes, the receive here {}", peer(), tag,
                         bytes, request->capacity);
  }
  return request;
}

void ControlledEndpoint::take_posted(Request& request) noexcept {
  Request* previous = nullptr;
  find_posted(request.tag, previous);
  posted_.remove(request, previous);
}

std::optional<WaitingMessage> ControlledEndpoint::waiting(std::uint64_t tag, std::uint64_t bytes) const {
  Request* previous = nullptr;
  if (find_posted(tag, previous) != nullptr) return std::nullopt;
  return WaitingMessage{tag, bytes, !posted_.empty()};
}

void ControlledEndpoint::end(Request& request, Request::State state) noexcept {
  request.state = state;
  core_->notable = true;
  if (!request.notify) return;
  if (ended_.empty()) core_->reporting.push_back(this);
  ended_.push(request);
  core_->poller.announce();
}

void ControlledEndpoint::report(std::vector<Request*>& completed) {
  while (Request* request = ended_.first()) {
    completed.push_back(request);
    ended_.pop();
  }
}

void ControlledEndpoint::fail_all(RequestList& list) noexcept {
  while (Request* request = list.pop()) end(*request, Request::State::kFailed);
}

// --- Ending ---

void ControlledEndpoint::fail(Status status) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  status_ = std::move(status);
  if (!coming_) core_->failed.push_back(this);
  core_->notable = true;
  log(LogLevel::kInfo, "transport: {}", status_.message());
  control_->abort(status_);  // first: the peer learns why before it sees that the transfers stop
  drop();
}

void ControlledEndpoint::abort(const Status& reason) noexcept try {
  fail(reason.ok() ? Status(Code::kAborted, "aborted") : reason);
} catch (...) {  // no memory for the text: without it
  control_->abort(reason);
  drop();
}

void ControlledEndpoint::finish() {
  if (finishing_ || state_ == State::kFailed) return;
  finishing_ = true;
  pump();
}

void ControlledEndpoint::try_goodbye() {
  if (!finishing_ || goodbye_sent_ || !usable() || !all_sent()) return;
  if (Status said = say(said_[2], encode_goodbye(next_send_)); !said.ok()) return fail(std::move(said));
  goodbye_sent_ = true;
  goodbye_at_ = Clock::now();
  control_->finish();
  core_->control_due = true;
  core_->ask_tick(kCloseTick);
}

void ControlledEndpoint::check_finished() {
  if (!goodbye_received_ || state_ != State::kReady || !all_taken(goodbye_messages_)) return;
  if (!posted_.empty()) {
    return fail(Status::error(Code::kRemoteError,
                              "{}: has finished, and a message with tag {:#x} was still expected from it",
                              peer(), posted_.first()->tag));
  }
  state_ = State::kFinished;
  core_->notable = true;
  check_closed(Clock::now());
}

void ControlledEndpoint::check_closed(Clock::time_point now) {
  if (closed_ || !goodbye_sent_ || !usable()) return;
  if (!control_->closed() || !settled(now)) return core_->ask_tick(kCloseTick);
  closed_ = true;
  core_->notable = true;
}

void ControlledEndpoint::on_tick(Clock::time_point now) {
  if (state_ == State::kConnecting) {
    if (now < opening_deadline_) {
      return core_->ask_tick(std::chrono::ceil<milliseconds>(opening_deadline_ - now));
    }
    return fail(Status::error(Code::kTimeout, "connect {} {}: not accepted within {} s (ONEBIT_INIT_TIMEOUT)",
                              coming_ ? "from" : "to", peer(),
                              core_->settings.init_timeout.count() / 1000.0));
  }
  if (!goodbye_sent_ || closed_ || !usable()) return;
  core_->control_due = true;
  check_closed(now);
}

}  // namespace onebit::transport
