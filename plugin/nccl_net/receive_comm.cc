#include "nccl_net/receive_comm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "nccl_net/abi.h"

namespace onebit::nccl_net {

using State = transport::Request::State;

ReceiveComm::ReceiveComm(Line line) : Comm(std::move(line), "receive from"), receives_(abi::kMaxRequests) {
  for (Receive& receive : receives_) {
    receive.comm = this;
    receive.next_free = std::exchange(free_, &receive);
  }
}

ReceiveComm::~ReceiveComm() {
  drop_endpoint();
}

Result<Operation*> ReceiveComm::receive(std::span<const Wanted> wanted) {
  ONEBIT_RETURN_IF_ERROR(usable());
  if (wanted.empty() || wanted.size() > kMaxReceives) {
    return Status::error(Code::kInvalidArgument, "{} receives in one request: it must be 1 to {}",
                         wanted.size(), kMaxReceives);
  }
  if (free_ == nullptr) {
    ONEBIT_RETURN_IF_ERROR(advance());
    return nullptr;
  }
  Receive& receive = *free_;
  free_ = std::exchange(receive.next_free, nullptr);
  receive.busy = true;
  ++in_flight_;
  receive.count = wanted.size();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    receive.parts[i].wanted = wanted[i];
    receive.parts[i].request.state = State::kIdle;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) ONEBIT_RETURN_IF_ERROR(post(receive.parts[i]));
  return &receive;
}

Result<Operation*> ReceiveComm::flush(const void* data, std::size_t bytes, transport::Memory* memory) {
  ONEBIT_RETURN_IF_ERROR(usable());
  if (!with_gpus()) return nullptr;
  if (free_ == nullptr) {
    return Status::error(Code::kInvalidUsage, "a flush beside {} requests in flight, as many as there may be",
                         receives_.size());
  }
  Receive& receive = *free_;
  receive.count = 1;
  receive.parts[0].request.state = State::kIdle;
  if (const Status begun = endpoint().flush(receive.parts[0].request, data, bytes, memory); !begun.ok()) {
    return fail(begun);
  }
  free_ = std::exchange(receive.next_free, nullptr);
  receive.busy = true;
  ++in_flight_;
  return &receive;
}

Status ReceiveComm::post(Part& part) {
  const Wanted& wanted = part.wanted;
  part.early = take_early(wanted.tag);
  if (part.early && part.early->request.capacity > wanted.capacity) {
    return fail(Status::error(Code::kInvalidUsage, "a message with tag {} has {} bytes, the receive here {}",
                              wanted.tag, part.early->request.capacity, wanted.capacity));
  }
  if (!part.early) {
    const Status posted =
        endpoint().receive(part.request, wanted.data, wanted.capacity, wanted.tag, 0, wanted.memory);
    if (!posted.ok()) return fail(posted);
  }
  const bool more = std::any_of(early_.begin(), early_.end(),
                                [&](const auto& message) { return message->tag == wanted.tag; });
  if (!more && std::erase(held_, wanted.tag) > 0) return say(control::kRelease, wanted.tag);
  return Status();
}

std::unique_ptr<ReceiveComm::Early> ReceiveComm::take_early(Tag tag) noexcept {
  const auto at =
      std::find_if(early_.begin(), early_.end(), [&](const auto& message) { return message->tag == tag; });
  if (at == early_.end()) return nullptr;
  std::unique_ptr<Early> taken = std::move(*at);
  early_.erase(at);
  return taken;
}

Status ReceiveComm::buffer(const transport::WaitingMessage& message) {
  if (message.tag > std::numeric_limits<Tag>::max() || message.bytes > kMaxMessage) {
    return fail(
        Status::error(Code::kDataError, "a message of {} bytes with tag {:#x}", message.bytes, message.tag));
  }
  auto early = std::make_unique<Early>();
  early->tag = static_cast<Tag>(message.tag);
  early->data = std::make_unique_for_overwrite<std::byte[]>(message.bytes);
  Early& kept = *early_.emplace_back(std::move(early));
  if (const Status posted = endpoint().receive(kept.request, kept.data.get(), message.bytes, message.tag, 0);
      !posted.ok()) {
    return fail(posted);
  }
  if (std::find(held_.begin(), held_.end(), kept.tag) != held_.end()) return Status();
  held_.push_back(kept.tag);
  return say(control::kHold, kept.tag);
}

Status ReceiveComm::say(std::uint64_t kind, Tag tag) {
  said_.remove_if([](const transport::Request& request) { return request.state == State::kDone; });
  const Status sent = endpoint().send(said_.emplace_back(), nullptr, 0, control::encode(kind, tag), 0);
  // A sender that has already left needs no advice.
  if (sent.ok() || endpoint().state() == transport::Endpoint::State::kFinished) return Status();
  return fail(sent);
}

Status ReceiveComm::advance() {
  for (;;) {
    ONEBIT_RETURN_IF_ERROR(progress());
    const auto message = endpoint().waiting_message();
    if (!message || !message->blocks || with_gpus()) return Status();
    ONEBIT_RETURN_IF_ERROR(buffer(*message));
  }
}

State ReceiveComm::state_of(Receive& receive) noexcept {
  bool pending = false;
  for (std::size_t i = 0; i < receive.count; ++i) {
    const State state = receive.parts[i].source().state;
    if (state == State::kFailed) return state;
    pending |= state == State::kPending;
  }
  return pending ? State::kPending : State::kDone;
}

Status ReceiveComm::test(Operation& operation, bool& done, int* sizes) {
  auto& receive = static_cast<Receive&>(operation);
  if (state_of(receive) == State::kPending) ONEBIT_RETURN_IF_ERROR(advance());
  switch (state_of(receive)) {
    case State::kIdle:
    case State::kPending:
      return Status();
    case State::kFailed:
      ONEBIT_RETURN_IF_ERROR(usable());
      return fail(endpoint_error());
    case State::kDone:
      break;
  }
  for (std::size_t i = 0; i < receive.count; ++i) {
    Part& part = receive.parts[i];
    const std::size_t bytes = part.source().bytes;
    if (part.early && bytes > 0) std::memcpy(part.wanted.data, part.early->data.get(), bytes);
    part.early.reset();
    if (sizes != nullptr) sizes[i] = static_cast<int>(bytes);
  }
  receive.busy = false;
  receive.next_free = std::exchange(free_, &receive);
  --in_flight_;
  done = true;
  return Status();
}

}  // namespace onebit::nccl_net
