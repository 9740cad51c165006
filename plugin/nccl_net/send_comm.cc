#include "nccl_net/send_comm.h"

#include <algorithm>

#include "nccl_net/abi.h"

namespace onebit::nccl_net {
namespace {

using State = transport::Request::State;

/// Of what the transport has unsent; one message may be larger.
constexpr std::size_t kWindow = 8 << 20;
/// A sender whose messages always go at once looks for what the receiver says after this many bytes.
constexpr std::size_t kLookEvery = 256 << 10;
/// What a message counts in that, whatever its size.
constexpr std::size_t kMessageCost = 16 << 10;

}  // namespace

SendComm::SendComm(Line line) : Comm(std::move(line), "send to"), sends_(abi::kMaxRequests * kMaxReceives) {
  for (Send& send : sends_) {
    send.comm = this;
    send.next_free = std::exchange(free_, &send);
  }
}

SendComm::~SendComm() {
  drop_endpoint();
}

bool SendComm::held(Tag tag) const noexcept {
  return std::find(held_.begin(), held_.end(), tag) != held_.end();
}

Result<Operation*> SendComm::send(const void* data, std::size_t bytes, Tag tag, transport::Memory* memory) {
  ONEBIT_RETURN_IF_ERROR(usable());
  if (bytes > kMaxMessage) {
    return Status::error(Code::kInvalidArgument, "a message of {} bytes, above the limit of {}", bytes,
                         kMaxMessage);
  }
  bytes_since_look_ += bytes + kMessageCost;
  if (free_ == nullptr || !waiting_.empty() || bytes_since_look_ > kLookEvery) {
    ONEBIT_RETURN_IF_ERROR(advance());
  }
  if (free_ == nullptr) return nullptr;
  Send& send = *free_;
  send.data = data;
  send.bytes = bytes;
  send.tag = tag;
  send.memory = memory;
  send.submitted = send.settled = false;
  if (!waiting_.empty() || unsent_ >= kWindow || held(tag)) {
    waiting_.push_back(&send);
  } else {
    ONEBIT_RETURN_IF_ERROR(submit(send));
  }
  free_ = std::exchange(send.next_free, nullptr);
  send.busy = true;
  ++in_flight_;
  return &send;
}

Status SendComm::submit(Send& send) {
  if (const Status sent = endpoint().send(send.request, send.data, send.bytes, send.tag, 0, send.memory);
      !sent.ok()) {
    return fail(sent);
  }
  send.submitted = true;
  unsent_ += send.bytes;
  settle(send);
  return Status();
}

void SendComm::settle(Send& send) noexcept {
  if (!send.submitted || send.settled || send.request.state == State::kPending) return;
  send.settled = true;
  unsent_ -= send.bytes;
}

Status SendComm::submit_waiting() {
  if (waiting_.empty()) return Status();
  for (Send& send : sends_) {
    if (send.busy) settle(send);
  }
  for (auto at = waiting_.begin(); at != waiting_.end() && unsent_ < kWindow;) {
    Send& send = **at;
    if (held(send.tag)) {
      ++at;
      continue;
    }
    at = waiting_.erase(at);
    ONEBIT_RETURN_IF_ERROR(submit(send));
  }
  return Status();
}

Status SendComm::take_control(std::uint64_t word) {
  const auto tag = static_cast<Tag>(word);
  switch (word >> 32) {
    case control::kHold:
      if (!held(tag)) held_.push_back(tag);
      return Status();
    case control::kRelease:
      std::erase(held_, tag);
      return Status();
    default:
      return fail(Status::error(Code::kDataError, "the receiving end says {:#x}, which means nothing", word));
  }
}

Status SendComm::advance() {
  bytes_since_look_ = 0;
  for (;;) {
    ONEBIT_RETURN_IF_ERROR(progress());
    if (control_.state == State::kPending) break;
    if (std::exchange(control_.state, State::kIdle) == State::kDone) {
      ONEBIT_RETURN_IF_ERROR(take_control(control_word_));
    }
    const auto message = endpoint().waiting_message();
    if (!message) break;
    control_word_ = message->tag;
    if (const Status posted = endpoint().receive(control_, nullptr, 0, message->tag, 0); !posted.ok()) {
      return fail(posted);
    }
  }
  return submit_waiting();
}

Status SendComm::test(Operation& operation, bool& done, int* sizes) {
  auto& send = static_cast<Send&>(operation);
  if (!send.submitted || send.request.state == State::kPending) ONEBIT_RETURN_IF_ERROR(advance());
  if (!send.submitted || send.request.state == State::kPending) return Status();
  if (send.request.state == State::kFailed) {
    ONEBIT_RETURN_IF_ERROR(usable());
    return fail(endpoint_error());
  }
  settle(send);
  if (sizes != nullptr) *sizes = static_cast<int>(send.bytes);
  send.busy = false;
  send.next_free = std::exchange(free_, &send);
  --in_flight_;
  done = true;
  return Status();
}

}  // namespace onebit::nccl_net
