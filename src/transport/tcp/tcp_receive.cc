// The receiving direction of a TcpEndpoint: from the flows to the requests, by sequence and tag.
//
// Everything that comes is checked against the state before a byte is written: the sequence, the message's
// size, tag and check word, and that no more bytes than the message has are announced.
#include <algorithm>
#include <cstring>

#include "transport/tcp/tcp_endpoint.h"

namespace onebit::transport {
namespace {

/// What one turn of a flow reads, about.
constexpr std::uint64_t kReadBudget = 4 << 20;

std::int32_t distance(std::uint32_t sequence, std::uint32_t from) {
  return static_cast<std::int32_t>(sequence - from);
}

}  // namespace

Status TcpEndpoint::receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                            std::uint32_t check, Memory* /*memory*/) {
  ONEBIT_RETURN_IF_ERROR(post(request, data, capacity, tag, check));
  unpark();
  return Status();
}

bool TcpEndpoint::look_at(Flow& flow) {
  if (!usable() || flow.parked || flow.has_out() || !flow.lent.empty() || !sends_.empty() ||
      (posted_.empty() && active_.empty())) {
    return false;
  }
  flow.readable = true;
  on_flow_ready(flow);
  return true;
}

void TcpEndpoint::read(Flow& flow) {
  const std::uint64_t limit = counters_.wire_received + kReadBudget;
  for (;;) {
    switch (consume(flow)) {
      case Consumed::kFailed:
        return;
      case Consumed::kParked:
        if (flow.hung_up && !flow.at_end) read_parked_rest(flow);
        return;
      case Consumed::kAll:
        break;
    }
    if (flow.at_end) return on_end(flow);
    if (!flow.readable) return;
    if (counters_.wire_received >= limit) return core_->poller.enqueue(flow);
    Request* const request = flow.receiving;
    std::uint64_t payload = 0;
    // With messages of this end the acknowledgment travels for nothing.
    flow.read(core_->polled && next_send_ == 0, payload, counters_.wire_received);
    if (payload > 0) {
      request->transferred += payload;
      counters_.payload_received += payload;
      if (flow.payload_left == 0) finish_segment(flow);
    }
  }
}

TcpEndpoint::Consumed TcpEndpoint::consume(Flow& flow) {
  if (flow.parked) return Consumed::kParked;
  for (;;) {
    if (flow.payload_left > 0) {
      const std::size_t bytes = std::min(flow.payload_left, flow.staged());
      if (bytes == 0) return Consumed::kAll;
      std::memcpy(flow.payload_at, flow.staging.data() + flow.begin, bytes);
      flow.begin += bytes;
      flow.payload_at += bytes;
      flow.payload_left -= bytes;
      flow.receiving->transferred += bytes;
      counters_.payload_received += bytes;
      if (flow.payload_left == 0) finish_segment(flow);
      continue;
    }
    if (flow.staged() == 0) return Consumed::kAll;
    if (flow.goodbye_received) {
      fail_data("bytes after its goodbye");
      return Consumed::kFailed;
    }
    if (flow.staged() < kHeaderBytes) return Consumed::kAll;
    SegmentHeader header;
    if (const char* problem = decode_header(flow.staging.data() + flow.begin, header)) {
      fail_data(problem);
      return Consumed::kFailed;
    }
    if (header.kind == SegmentKind::kData) {
      const Consumed result = take_data(flow, header);
      if (result != Consumed::kAll) return result;
      continue;
    }
    if (flow.staged() < kHeaderBytes + header.segment_bytes) return Consumed::kAll;
    flow.begin += kHeaderBytes;
    if (header.kind == SegmentKind::kAbort) {
      take_abort(header, flow.staging.data() + flow.begin);
    } else {
      take_goodbye(flow, header);
    }
    if (state_ == State::kFailed) return Consumed::kFailed;
  }
}

/// The header is still in the staging buffer; it is taken from there unless the flow parks.
TcpEndpoint::Consumed TcpEndpoint::take_data(Flow& flow, const SegmentHeader& header) {
  const std::int32_t ahead = distance(header.sequence, next_match_);
  if (ahead > 0) {
    park(flow, header);
    return state_ == State::kFailed ? Consumed::kFailed : Consumed::kParked;
  }
  Request* request = nullptr;
  if (ahead == 0) {
    request = match(header);
    if (state_ == State::kFailed) return Consumed::kFailed;
    if (request == nullptr) {
      park(flow, header);
      return Consumed::kParked;
    }
  } else {
    request = find_active(header.sequence);
    if (request == nullptr || request->bytes != header.message_bytes || request->tag != header.tag ||
        request->check != header.check) {
      fail_data("a segment of a message that is not under way");
      return Consumed::kFailed;
    }
  }
  if (header.segment_bytes > request->bytes - request->assigned) {
    fail_data("more bytes of a message than it has");
    return Consumed::kFailed;
  }
  request->assigned += header.segment_bytes;
  flow.begin += kHeaderBytes;
  flow.receiving = request;
  flow.payload_at = request->data + header.offset;
  flow.payload_left = header.segment_bytes;
  flow.large_expected = header.segment_bytes >= Flow::kLarge;
  flow.small_expected = kHeaderBytes + header.segment_bytes <= Flow::kPeek;
  if (core_->recent != nullptr && core_->recent != &flow) core_->recent->take_peeked();
  core_->recent = flow.small_expected ? &flow : nullptr;
  if (flow.payload_left == 0) finish_segment(flow);
  return Consumed::kAll;
}

/// The posted receive that takes the next message, made active; null when there is none yet.
Request* TcpEndpoint::match(const SegmentHeader& header) {
  const Result<Request*> found = posted_for(header.tag, header.check, header.message_bytes);
  if (!found.ok()) {
    fail(found.status());
    return nullptr;
  }
  Request* const request = *found;
  if (request == nullptr) return nullptr;
  take_posted(*request);
  request->sequence = header.sequence;
  request->bytes = header.message_bytes;
  active_.push(*request);
  ++next_match_;
  unpark();
  return request;
}

Request* TcpEndpoint::find_active(std::uint32_t sequence) const noexcept {
  Request* request = active_.first();
  while (request != nullptr && request->sequence != sequence) request = request->next;
  return request;
}

void TcpEndpoint::finish_segment(Flow& flow) noexcept {
  Request& request = *flow.receiving;
  flow.receiving = nullptr;
  if (request.transferred != request.bytes) return;
  Request* previous = nullptr;
  for (Request* at = active_.first(); at != &request; at = at->next) previous = at;
  active_.remove(request, previous);
  end(request, Request::State::kDone);
}

void TcpEndpoint::park(Flow& flow, const SegmentHeader& header) {
  flow.parked = true;
  flow.parked_header = header;
  // Flows carry messages in order: when no flow can bring the next one any more, somebody lies.
  for (const auto& other : flows_) {
    const bool beyond = other->goodbye_received ||
                        (other->parked && distance(other->parked_header.sequence, next_match_) > 0);
    if (!beyond) return;
  }
  fail_data("a message out of sequence");
}

std::optional<WaitingMessage> TcpEndpoint::waiting_message() const {
  for (const auto& flow : flows_) {
    const SegmentHeader& header = flow->parked_header;
    if (flow->parked && header.sequence == next_match_) {
      return WaitingMessage{header.tag, header.message_bytes, !posted_.empty()};
    }
  }
  return std::nullopt;
}

/// Lets those parked flows go on whose next message is matched or can be matched now.
void TcpEndpoint::unpark() noexcept {
  for (const auto& flow : flows_) {
    if (!flow->parked) continue;
    const std::int32_t ahead = distance(flow->parked_header.sequence, next_match_);
    if (ahead > 0 || (ahead == 0 && !has_posted(flow->parked_header.tag))) continue;
    flow->parked = false;
    core_->poller.enqueue(*flow);
  }
}

void TcpEndpoint::take_goodbye(Flow& flow, const SegmentHeader& header) {
  if (goodbyes_ > 0 && header.sequence != goodbye_sequence_) return fail_data("two different goodbyes");
  flow.goodbye_received = true;
  goodbye_sequence_ = header.sequence;
  if (++goodbyes_ == flows_.size()) on_finished();
}

void TcpEndpoint::on_finished() {
  if (next_match_ != goodbye_sequence_ || !active_.empty())
    return fail_data("a goodbye before its last message");
  become_finished();
  check_closed();
}

void TcpEndpoint::take_abort(const SegmentHeader& header, const std::byte* reason) {
  std::string text(reinterpret_cast<const char*>(reason), header.segment_bytes);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  fail(Status::error(Code::kRemoteError, "{}: failed and said why: {}", peer(), text));
}

/// The peer of a parked flow has closed. What the kernel still holds is all that will ever come; whether it
/// ends in a goodbye tells an orderly end from a death.
void TcpEndpoint::read_parked_rest(Flow& flow) {
  flow.read_rest(counters_.wire_received);
  if (!flow.at_end) return;
  std::size_t at = flow.begin;
  while (flow.end - at >= kHeaderBytes) {
    SegmentHeader header;
    const std::byte* const head = flow.staging.data() + at;
    if (decode_header(head, header) != nullptr) break;
    at += kHeaderBytes;
    if (header.segment_bytes > flow.end - at) break;
    if (header.kind == SegmentKind::kAbort) return take_abort(header, head + kHeaderBytes);
    if (header.kind == SegmentKind::kGoodbye) {
      flow.goodbye_ahead = true;
      return;
    }
    at += header.segment_bytes;
  }
  on_end(flow);
}

void TcpEndpoint::fail_data(std::string_view what) {
  fail(Status::error(Code::kDataError, "{}: sent {}", peer(), what));
}

}  // namespace onebit::transport
