// The two directions of a UcxEndpoint: from the queue to UCX as the window allows, and from UCX to the
// receives that match.
#include <algorithm>
#include <cstring>
#include <exception>

#include "transport/ucx/ucx_endpoint.h"

namespace onebit::transport {

// --- Operations ---

UcxOperation& UcxEndpoint::begin(UcxOperation::Kind kind, Request* request, std::size_t bytes) {
  UcxOperation& operation = ucx().take_operation();
  under_way_.reserve(under_way_.size() + 1);
  done_.reserve(under_way_.size() + 1);
  operation.owner = this;
  operation.library = &library();
  operation.kind = kind;
  operation.request = request;
  operation.bytes = bytes;
  under_way_.push_back(&operation);
  return operation;
}

/// One that UCX refuses stays under way, with its request, until the control connection was asked why.
void UcxEndpoint::begun(UcxOperation& operation, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) return;
  operation.status = UCS_PTR_STATUS(result);
  complete(operation);
}

/// UCX's request has ended.
void UcxEndpoint::on_done(UcxOperation& operation, void* request, ucs_status_t status) noexcept {
  operation.status = status;
  operation.library->request_free(request);
  UcxEndpoint* const owner = operation.owner;
  if (owner == nullptr) return;
  owner->done_.push_back(&operation);
  owner->note_moved();
}

void UcxEndpoint::complete(UcxOperation& operation) {
  if (operation.status != UCS_OK) return on_error(operation.status);
  std::erase(under_way_, &operation);
  Request* const request = operation.request;
  switch (operation.kind) {
    case UcxOperation::Kind::kSend:
      if (request == nullptr) break;
      counters_.payload_sent += operation.bytes;
      request->transferred += operation.bytes;
      if (request->transferred == request->capacity) end(*request, Request::State::kDone);
      break;
    case UcxOperation::Kind::kReceive:
      counters_.wire_received += operation.bytes;
      received(*request, operation.bytes);
      break;
    case UcxOperation::Kind::kOpening:
      opening_sent_ = true;
      break;
    case UcxOperation::Kind::kLast:
      last_sent_ = true;
      break;
  }
  ucx().give_back(operation);
}

// --- Sends ---

Status UcxEndpoint::send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                         std::uint32_t check, Memory* /*memory*/) {
  ONEBIT_RETURN_IF_ERROR(prepare_send(request, data, bytes, tag, check));
  sends_.push(request);
  pump();
  return Status();
}

void UcxEndpoint::post_segments() {
  while (!sends_.empty() && segments_sent_ - peer_freed_ < peer_window_ && error_ == UCS_OK) {
    Request& request = *sends_.first();
    const std::byte* const from = request.data + request.assigned;
    const std::size_t bytes =
        std::min<std::size_t>(request.capacity - request.assigned, ucx().window.segment_bytes);
    UcxHeader header;
    header.segment = segments_sent_++;
    header.tag = request.tag;
    header.check = request.check;
    header.bytes = request.capacity;
    header.kind = request.assigned > 0       ? SegmentOf::kNext
                  : bytes < request.capacity ? SegmentOf::kFirst
                                             : SegmentOf::kWhole;
    request.assigned += bytes;
    if (request.assigned == request.capacity) sends_.pop();
    post_message(UcxOperation::Kind::kSend, header, &request, from, bytes);
  }
}

/// A peer that may have left in order is not written to, for its end would answer with a reset: what the
/// control connection knows is asked first.
bool UcxEndpoint::credits_are_due() noexcept {
  if (goodbye_received_) return told_ != freed_;  // it waits for the last ones
  if (freed_ - told_ < (ucx().window.segments + 1) / 2) return false;
  if (!at_control_) core_->control_due = true;
  return at_control_;
}

void UcxEndpoint::post_credits(UcxOperation::Kind kind) {
  UcxHeader header;
  header.kind = SegmentOf::kCredits;
  post_message(kind, header, nullptr, nullptr, 0);
}

void UcxEndpoint::post_message(UcxOperation::Kind kind, UcxHeader& header, Request* request,
                               const std::byte* data, std::size_t bytes) {
  header.token = peer_token_;
  header.freed = told_ = freed_;
  UcxOperation& operation = begin(kind, request, bytes);
  const std::size_t header_bytes = encode_ucx(header, operation.header);
  counters_.wire_sent += header_bytes + bytes;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  if (kind == UcxOperation::Kind::kOpening) {
    // It leaves when UCX has connected this direction to the end, and no later message has to wait for that.
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_AM_SEND_FLAG_REPLY;
  }
  parameters.user_data = &operation;
  parameters.cb.send = [](void* ended, ucs_status_t status, void* of) {
    on_done(*static_cast<UcxOperation*>(of), ended, status);
  };
  begun(operation, library().am_send(endpoint_, UcxCore::kMessageId, operation.header.data(), header_bytes,
                                     data, bytes, &parameters));
}

/// False when the peer says to have matched what it never had.
bool UcxEndpoint::take_credits(std::uint32_t freed) noexcept {
  if (freed - peer_freed_ > segments_sent_ - peer_freed_) return false;
  peer_freed_ = freed;
  return true;
}

// --- Receives ---

Status UcxEndpoint::receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                            std::uint32_t check, Memory* /*memory*/) {
  ONEBIT_RETURN_IF_ERROR(post(request, data, capacity, tag, check));
  if (arrivals_.empty()) return Status();
  if (Status taken = take_arrivals(); !taken.ok()) {
    fail(std::move(taken));
    return Status();
  }
  check_finished();
  pump();
  return Status();
}

bool UcxEndpoint::on_arrival(UcxArrival& arrival, const char* problem, std::size_t header_bytes) noexcept
    try {
  note_moved();
  heard_ = true;
  const UcxHeader& header = arrival.header;
  const std::uint32_t place = header.segment - freed_;
  const bool credits = header.kind == SegmentOf::kCredits;
  if (problem == nullptr && !take_credits(header.freed)) problem = "more credits than it had";
  if (problem == nullptr && !credits && place >= ucx().window.segments) {
    problem = "more than there is room for";
  }
  if (problem == nullptr && !credits && place < arrivals_.size() && arrivals_[place].here) {
    problem = "a segment twice";
  }
  if (problem != nullptr) {
    if (trouble_.ok()) trouble_ = bad_data(problem);
    return false;
  }
  counters_.wire_received += header_bytes + (arrival.by_rendezvous ? 0 : arrival.bytes);
  if (credits) return false;
  bytes_arrived_ += arrival.bytes;
  if (header.kind != SegmentOf::kNext) {
    bytes_announced_ += header.bytes;
    ++messages_arrived_;
  }
  if (arrivals_.empty() && place == 0 && take_at_once(arrival)) return false;
  arrival.here = true;
  if (!arrival.may_be_kept) {
    arrival.copy.assign(arrival.data, arrival.data + arrival.bytes);
    arrival.data = arrival.copy.data();
  }
  if (arrivals_.size() <= place) arrivals_.resize(place + 1);
  arrivals_[place] = std::move(arrival);
  return arrivals_[place].may_be_kept;
} catch (const std::exception&) {
  on_error(UCS_ERR_NO_MEMORY);
  return false;
}

/// A small message that is expected needs no way round.
bool UcxEndpoint::take_at_once(const UcxArrival& arrival) {
  if (arrival.by_rendezvous || arrival.header.kind != SegmentOf::kWhole || filling_ != nullptr) return false;
  auto request = posted_for(arrival.header.tag, arrival.header.check, arrival.header.bytes);
  if (!request.ok() || *request == nullptr) return false;  // an error comes up again in advance()
  take_posted(**request);
  (*request)->bytes = arrival.bytes;
  ++freed_;
  ++messages_taken_;
  if (arrival.bytes > 0) std::memcpy((*request)->data, arrival.data, arrival.bytes);
  received(**request, arrival.bytes);
  return true;
}

/// Hands segments to posted receives, in the order of the sender.
Status UcxEndpoint::take_arrivals() {
  while (!arrivals_.empty() && arrivals_.front().here) {
    const UcxArrival& next = arrivals_.front();
    if (next.by_rendezvous && error_ != UCS_OK) return Status();
    Request* request = filling_;
    if (next.header.kind == SegmentOf::kNext) {
      if (request == nullptr) return bad_data("a segment of no message");
      if (next.bytes > request->bytes - request->assigned) return bad_data("more of a message than it has");
    } else {
      if (request != nullptr) return bad_data("a message before the last one's end");
      ONEBIT_ASSIGN_OR_RETURN(request, posted_for(next.header.tag, next.header.check, next.header.bytes));
      if (request == nullptr) return Status();
      take_posted(*request);
      request->bytes = next.header.bytes;
      ++messages_taken_;
    }
    const UcxArrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    ++freed_;
    std::byte* const to = request->data + request->assigned;
    request->assigned += arrival.bytes;
    filling_ = request->assigned < request->bytes ? request : nullptr;
    fetch(arrival, *request, to);
  }
  return Status();
}

void UcxEndpoint::fetch(const UcxArrival& arrival, Request& request, std::byte* to) {
  if (!arrival.by_rendezvous) {
    if (arrival.bytes > 0) std::memcpy(to, arrival.data, arrival.bytes);
    if (arrival.may_be_kept) library().am_data_release(worker_->get(), arrival.data);
    return received(request, arrival.bytes);
  }
  UcxOperation& operation = begin(UcxOperation::Kind::kReceive, &request, arrival.bytes);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  parameters.user_data = &operation;
  parameters.cb.recv_am = [](void* ended, ucs_status_t status, std::size_t /*bytes*/, void* of) {
    on_done(*static_cast<UcxOperation*>(of), ended, status);
  };
  begun(operation, library().am_recv_data(worker_->get(), arrival.data, to, arrival.bytes, &parameters));
}

void UcxEndpoint::received(Request& request, std::size_t bytes) {
  counters_.payload_received += bytes;
  request.transferred += bytes;
  if (request.transferred == request.bytes) end(request, Request::State::kDone);
}

std::optional<WaitingMessage> UcxEndpoint::waiting_message() const {
  if (arrivals_.empty() || !arrivals_.front().here || filling_ != nullptr) return std::nullopt;
  return waiting(arrivals_.front().header.tag, arrivals_.front().header.bytes);
}

}  // namespace onebit::transport
