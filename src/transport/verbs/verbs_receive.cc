// The receiving direction of a VerbsEndpoint: from slots and writes to the requests, by sequence and tag.
//
// What a peer says is checked before anything is done with it. Where it writes is not in its hands but in
// ours: it knows only keys of memory that was advertised to it.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {

Status VerbsEndpoint::receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                              std::uint32_t check, Memory* memory) {
  ONEBIT_RETURN_IF_ERROR(post(request, data, capacity, tag, check));
  request.memory = memory;
  if (arrivals_.empty()) return Status();
  if (Status matched = match(); !matched.ok()) {
    fail(std::move(matched));
    return Status();
  }
  check_finished();
  pump();
  return Status();
}

bool VerbsEndpoint::credits_are_due() const noexcept {
  const QueueSizes& own = own_sizes();
  return slots_freed_ - slots_told_ >= (own.slots + 1) / 2 ||
         segments_freed_ - segments_told_ >= (own.segments + 1) / 2;
}

Status VerbsEndpoint::on_arrival(const ibv_wc& completion) {
  const int slot = static_cast<int>(VerbsQueues::index(completion.wr_id));
  MessageHeader header;
  if (const char* problem = decode_message(queues_->slot(slot), completion.byte_len, header))
    return bad_data(problem);
  if (incoming_.empty()) return bad_data("a message before its introduction");
  counters_.wire_received += completion.byte_len;
  if (!take_credits(header)) return bad_data("more credits than it had");
  switch (header.kind) {
    case MessageKind::kEager:
    case MessageKind::kAnnounce:
      if (header.sequence != next_arrival_) return bad_data("a message out of sequence");
      ++next_arrival_;
      arrivals_.push_back({slot, header});
      return match();
    case MessageKind::kAdvertise:
      ONEBIT_RETURN_IF_ERROR(take_advertisement(header));
      break;
    case MessageKind::kCredits:
      break;
  }
  return queues_->renew_slot(slot);
}

/// Hands arrivals to posted receives, in the order of the sender.
Status VerbsEndpoint::match() {
  while (!arrivals_.empty()) {
    const Arrival arrival = arrivals_.front();
    const MessageHeader& header = arrival.header;
    ONEBIT_ASSIGN_OR_RETURN(Request* const request, posted_for(header.tag, header.check, header.bytes));
    if (request == nullptr) return Status();
    const bool announced = header.kind == MessageKind::kAnnounce;
    if (announced && header.rendezvous >= incoming_.size())
      return bad_data("an announcement with an impossible number");
    // The last bytes of the number's previous message may still be on their way through another queue.
    if (announced && incoming_[header.rendezvous].request != nullptr) return Status();
    take_posted(*request);
    request->bytes = header.bytes;
    ONEBIT_RETURN_IF_ERROR(announced ? take_announced(arrival, *request) : take_eager(arrival, *request));
    arrivals_.pop_front();
    ++slots_freed_;
    ONEBIT_RETURN_IF_ERROR(queues_->renew_slot(arrival.slot));
  }
  return Status();
}

Status VerbsEndpoint::take_eager(const Arrival& arrival, Request& request) {
  if (request.bytes > 0) {
    std::memcpy(request.data, queues_->slot(arrival.slot) + kEagerHeaderBytes, request.bytes);
  }
  counters_.payload_received += request.bytes;
  end(request, Request::State::kDone);
  return Status();
}

Status VerbsEndpoint::take_announced(const Arrival& arrival, Request& request) {
  Incoming& incoming = incoming_[arrival.header.rendezvous];
  incoming.request = &request;  // from here on it is not lost in a failure
  auto memory = VerbsCore::hold(ports_, request.data, request.bytes, true, request.memory);
  if (!memory.ok()) return memory.status().with_context(formatted("receive from {}", peer()));
  incoming.memory = std::move(*memory);
  to_advertise_.push_back(arrival.header.rendezvous);
  return Status();
}

Status VerbsEndpoint::on_segment_arrival(const ibv_wc& completion) {
  const std::uint32_t number = ntohl(completion.imm_data);
  if (number >= incoming_.size() || incoming_[number].request == nullptr)
    return bad_data("a segment of no message");
  Incoming& incoming = incoming_[number];
  Request& request = *incoming.request;
  const std::uint32_t bytes = completion.byte_len;
  if (bytes == 0 || bytes > request.bytes - request.transferred)
    return bad_data("more bytes of a message than it has");
  request.transferred += bytes;
  counters_.payload_received += bytes;
  counters_.wire_received += bytes;
  ++segments_freed_;
  ONEBIT_RETURN_IF_ERROR(queues_->renew_segment(VerbsQueues::index(completion.wr_id)));
  if (request.transferred < request.bytes) return Status();
  incoming = Incoming();
  end(request, Request::State::kDone);
  return arrivals_.empty() ? Status() : match();
}

Status VerbsEndpoint::flush(Request& request, const void* data, std::size_t bytes, Memory* memory) {
  if (!verbs_core().with_gpus || bytes == 0) return Endpoint::flush(request, data, bytes, memory);
  if (request.state == Request::State::kPending) {
    return Status(Code::kInvalidUsage, "the request is already pending");
  }
  if (!usable())
    return state() == State::kFailed ? status() : Status(Code::kInvalidUsage, "not yet connected");
  if (flush_ == nullptr) {
    ONEBIT_ASSIGN_OR_RETURN(flush_, VerbsFlush::make(ports_, core_->settings));
  }
  request.state = Request::State::kPending;
  request.data = static_cast<std::byte*>(const_cast<void*>(data));
  request.capacity = request.bytes = bytes;
  request.memory = memory;
  flushes_.push(request);
  if (Status begun = begin_flush(); !begun.ok()) fail(begun.with_context(peer()));
  return Status();
}

Status VerbsEndpoint::begin_flush() {
  if (flushes_.empty() || flush_->busy()) return Status();
  const Request& request = *flushes_.first();
  ONEBIT_ASSIGN_OR_RETURN(auto memory,
                          VerbsCore::hold(ports_, request.data, request.bytes, true, request.memory));
  return flush_->begin(request.data, std::move(memory));
}

Status VerbsEndpoint::poll_flush(bool& any) {
  if (flush_ == nullptr || !flush_->busy()) return Status();
  ONEBIT_ASSIGN_OR_RETURN(const bool ended, flush_->poll());
  if (!ended) return Status();
  any = true;
  end(*flushes_.pop(), Request::State::kDone);
  return begin_flush();
}

std::optional<WaitingMessage> VerbsEndpoint::waiting_message() const {
  if (arrivals_.empty()) return std::nullopt;
  const MessageHeader& header = arrivals_.front().header;
  return waiting(header.tag, header.bytes);
}

}  // namespace onebit::transport
