// The sending direction of a TcpEndpoint: from the queue to the flows, by segments.
#include <algorithm>

#include "transport/tcp/tcp_endpoint.h"

namespace onebit::transport {
namespace {

/// Messages up to this size are one segment, on one flow.
constexpr std::uint64_t kSmallMessage = 64 << 10;
/// With several flows: small enough that they share the load, large enough to cost nothing.
constexpr std::uint64_t kSharedSegment = 256 << 10;
/// With one flow: an abort can say why only between segments.
constexpr std::uint64_t kLoneSegment = 4 << 20;
/// What is gathered into one write, at least.
constexpr std::size_t kGather = 256 << 10;

std::uint64_t segment_limit(std::uint64_t message, std::size_t flows) {
  if (flows == 1) return kLoneSegment;
  if (message <= kSmallMessage) return kSmallMessage;
  const std::uint64_t share = (message + flows - 1) / flows;
  const std::uint64_t rounded = (share + kSmallMessage - 1) / kSmallMessage * kSmallMessage;
  return std::min(rounded, kSharedSegment);
}

}  // namespace

Status TcpEndpoint::send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                         std::uint32_t check, Memory* /*memory*/) {
  if (peer_left_ && !finishing_ && usable()) {
    return Status::error(Code::kRemoteError, "{}: has finished and closed the connection", peer());
  }
  ONEBIT_RETURN_IF_ERROR(prepare_send(request, data, bytes, tag, check));
  sends_.push(request);
  pump(kInlineBudget);
  return Status();
}

void TcpEndpoint::fill(Flow& flow) {
  std::size_t total = 0;
  while (!sends_.empty() && flow.out_count < Flow::kMaxBatch && total < kGather) {
    Request& request = *sends_.first();
    const std::uint64_t left = request.capacity - request.assigned;
    const auto bytes =
        static_cast<std::uint32_t>(std::min(left, segment_limit(request.capacity, flows_.size())));
    Flow::OutSegment& segment = flow.out[flow.out_count++];
    SegmentHeader header;
    header.sequence = request.sequence;
    header.tag = request.tag;
    header.check = request.check;
    header.segment_bytes = bytes;
    header.message_bytes = request.capacity;
    header.offset = request.assigned;
    encode_header(header, segment.header.data());
    segment.request = &request;
    segment.payload = request.data + request.assigned;
    segment.bytes = bytes;
    request.assigned += bytes;
    total += kHeaderBytes + bytes;
    if (request.assigned == request.capacity) sends_.pop();
  }
}

void TcpEndpoint::on_sent(Request& request, std::size_t bytes) noexcept {
  request.transferred += bytes;
  counters_.payload_sent += bytes;
  if (request.transferred == request.capacity) end(request, Request::State::kDone);
}

void TcpEndpoint::take_returned(Flow& flow) {
  returned_.clear();
  flow.lent.take_returned(flow.fd.get(), returned_);
  for (const LentPayloads::Payload& payload : returned_) on_sent(*payload.request, payload.bytes);
  check_closed();
}

bool TcpEndpoint::write(Flow& flow) {
  const Flow::Write result = flow.write(counters_.wire_sent);
  core_->ask_tick(core_->link_tick);
  if (result != Flow::Write::kBroken) return result == Flow::Write::kAll;
  // The peer may have said why before it closed: what it sent is read first, then on_broken decides.
  flow.hung_up = flow.readable = true;
  core_->poller.enqueue(flow);
  return false;
}

void TcpEndpoint::pump(std::size_t budget) {
  if (!usable()) return;
  const std::uint64_t limit = counters_.wire_sent + budget;
  for (const auto& flow : flows_) {
    if (flow->has_out() && flow->writable) write(*flow);
  }
  std::size_t busy = 0;
  while (!sends_.empty() && busy < flows_.size()) {
    Flow& flow = *flows_[turn_];
    if (flow.has_out() || !flow.writable || flow.write_broken) {
      ++busy;
      turn_ = (turn_ + 1) % flows_.size();
      continue;
    }
    if (counters_.wire_sent >= limit) {  // others have their turn, then this goes on
      core_->poller.enqueue(flow);
      break;
    }
    busy = 0;
    const std::uint64_t before = counters_.wire_sent;
    fill(flow);
    write(flow);
    // Small messages stay together, large ones go round.
    if (counters_.wire_sent - before > kSmallMessage) turn_ = (turn_ + 1) % flows_.size();
  }
  if (finishing_ && sends_.empty()) send_goodbyes();
}

void TcpEndpoint::send_goodbyes() {
  for (const auto& flow : flows_) {
    if (!flow->goodbye_sent && !flow->has_out() && flow->writable && !flow->write_broken) {
      SegmentHeader header;
      header.kind = SegmentKind::kGoodbye;
      header.sequence = next_send_;
      Flow::OutSegment& segment = flow->out[flow->out_count++];
      encode_header(header, segment.header.data());
      segment.request = nullptr;
      segment.payload = nullptr;
      segment.bytes = 0;
      flow->goodbye_sent = true;
      flow->end_hard(false);
      write(*flow);
    }
  }
  check_closed();
}

}  // namespace onebit::transport
