#include "transport/common_endpoint.h"

#include <utility>

#include "base/log.h"

namespace onebit::transport {

using std::chrono::milliseconds;

void CommonCore::tell(std::vector<Request*>& completed) {
  for (CommonEndpoint* const endpoint : reporting) endpoint->report(completed);
  reporting.clear();
  notable = false;
}

CommonEndpoint::CommonEndpoint(std::shared_ptr<CommonCore> core) : common_(std::move(core)) {
  const std::size_t room = common_->endpoints.size() + 1;
  common_->failed.reserve(room);
  common_->reporting.reserve(room);
  common_->endpoints.push_back(this);
}

CommonEndpoint::~CommonEndpoint() {
  std::erase(common_->endpoints, this);
  std::erase(common_->failed, this);
  std::erase(common_->reporting, this);
}

// --- Life ---

void CommonEndpoint::expect_answer() {
  const milliseconds limit = common_->settings.init_timeout;
  opening_deadline_ = Clock::now() + limit;
  common_->ask_tick(limit);
}

bool CommonEndpoint::waits_for_answer(Clock::time_point now) {
  if (state_ != State::kConnecting) return false;
  if (now < opening_deadline_) {
    common_->ask_tick(std::chrono::ceil<milliseconds>(opening_deadline_ - now));
  } else {
    fail(Status::error(Code::kTimeout, "connect {} {}: no answer within {} s (ONEBIT_INIT_TIMEOUT)",
                       coming_ ? "from" : "to", peer(), common_->settings.init_timeout.count() / 1000.0));
  }
  return true;
}

void CommonEndpoint::become_ready() noexcept {
  state_ = State::kReady;
  common_->notable = true;
}

void CommonEndpoint::become_finished() {
  if (!posted_.empty()) {
    return fail(Status::error(Code::kRemoteError,
                              "{}: has finished, and a message with tag {:#x} was still expected from it",
                              peer(), posted_.first()->tag));
  }
  state_ = State::kFinished;
  common_->notable = true;
}

void CommonEndpoint::fail(Status status) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  status_ = std::move(status);
  if (!coming_) common_->failed.push_back(this);
  common_->notable = true;
  log(LogLevel::kInfo, "transport: {}", status_.message());
  stop(status_);
}

void CommonEndpoint::abort(const Status& reason) noexcept try {
  fail(reason.ok() ? Status(Code::kAborted, "aborted") : reason);
} catch (...) {  // no memory for the text: without it
  stop(reason);
}

// --- Requests ---

Status CommonEndpoint::check_usable(const Request& request) const {
  if (request.state == Request::State::kPending) {
    return Status(Code::kInvalidUsage, "the request is already pending");
  }
  if (state_ == State::kFailed) return status_;
  if (state_ == State::kConnecting) {
    return Status::error(Code::kInvalidUsage, "{}: not yet connected", peer());
  }
  return Status();
}

Status CommonEndpoint::prepare_send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                                    std::uint32_t check) {
  ONEBIT_RETURN_IF_ERROR(check_usable(request));
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

Status CommonEndpoint::post(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                            std::uint32_t check) {
  ONEBIT_RETURN_IF_ERROR(check_usable(request));
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

Request* CommonEndpoint::find_posted(std::uint64_t tag, Request*& previous) const noexcept {
  previous = nullptr;
  Request* request = posted_.first();
  while (request != nullptr && request->tag != tag) {
    previous = request;
    request = request->next;
  }
  return request;
}

bool CommonEndpoint::has_posted(std::uint64_t tag) const noexcept {
  Request* previous = nullptr;
  return find_posted(tag, previous) != nullptr;
}

Result<Request*> CommonEndpoint::posted_for(std::uint64_t tag, std::uint32_t check, std::uint64_t bytes) {
  Request* previous = nullptr;
  Request* const request = find_posted(tag, previous);
  if (request == nullptr) {
    if (!posted_.empty()) common_->notable = true;  // it blocks them
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

void CommonEndpoint::take_posted(Request& request) noexcept {
  Request* previous = nullptr;
  find_posted(request.tag, previous);
  posted_.remove(request, previous);
}

void CommonEndpoint::end(Request& request, Request::State state) noexcept {
  request.state = state;
  common_->notable = true;
  if (!request.notify) return;
  if (ended_.empty()) common_->reporting.push_back(this);
  ended_.push(request);
  common_->poller.announce();
}

void CommonEndpoint::report(std::vector<Request*>& completed) {
  while (Request* request = ended_.first()) {
    completed.push_back(request);
    ended_.pop();
  }
}

void CommonEndpoint::fail_all(RequestList& list) noexcept {
  while (Request* request = list.pop()) end(*request, Request::State::kFailed);
}

}  // namespace onebit::transport
