// The sending direction of a VerbsEndpoint: from the queue to slots and segments, as credits allow.
#include <algorithm>
#include <cstring>

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {
namespace {

/// Of each pair, with several ports: enough to keep its port busy while the completion of one is on its way.
constexpr std::size_t kSharedDepth = 4;
/// With several ports: small enough that they share the load, large enough to cost nothing.
constexpr std::uint64_t kLeastShare = 64 << 10;
constexpr std::uint64_t kMostShare = 256 << 10;

std::uint64_t segment_limit(std::uint64_t message, std::size_t ports, std::uint64_t most) {
  if (ports == 1) return most;
  const std::uint64_t share = (message + ports - 1) / ports;
  const std::uint64_t rounded = (share + kLeastShare - 1) / kLeastShare * kLeastShare;
  return std::min({rounded, kMostShare, most});
}

}  // namespace

Status VerbsEndpoint::send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                           std::uint32_t check, Memory* memory) {
  ONEBIT_RETURN_IF_ERROR(prepare_send(request, data, bytes, tag, check));
  request.memory = memory;
  sends_.push(request);
  pump();
  return Status();
}

/// Posts whatever there are credits and room for.
void VerbsEndpoint::pump() {
  if (!usable() || !broken_.ok()) return;
  if (open_) {
    if (Status posted = post_waiting(); !posted.ok()) return fail(std::move(posted));
  }
  try_goodbye();
}

Status VerbsEndpoint::post_waiting() {
  while (!to_advertise_.empty()) {
    const int slot = queues_->take_slot();
    if (slot < 0) return Status();
    const std::uint32_t number = to_advertise_.front();
    to_advertise_.pop_front();
    const Incoming& incoming = incoming_[number];
    MessageHeader header;
    header.kind = MessageKind::kAdvertise;
    header.rendezvous = number;
    header.address = reinterpret_cast<std::uintptr_t>(incoming.request->data);
    for (std::size_t i = 0; i < ports_.size(); ++i) header.keys[i] = incoming.memory[i].remote_key();
    ONEBIT_RETURN_IF_ERROR(send_message(slot, header, nullptr));
  }
  for (bool sent = true; sent && !sends_.empty();) ONEBIT_RETURN_IF_ERROR(send_next(sent));
  ONEBIT_RETURN_IF_ERROR(write_segments());
  if (!credits_are_due()) return Status();
  const int slot = queues_->take_slot();
  if (slot < 0) return Status();
  MessageHeader header;
  header.kind = MessageKind::kCredits;
  return send_message(slot, header, nullptr);
}

Status VerbsEndpoint::send_message(int slot, MessageHeader& header, const std::byte* data) {
  header.slots_freed = slots_told_ = slots_freed_;
  header.segments_freed = segments_told_ = segments_freed_;
  std::byte* const to = queues_->slot(slot);
  std::size_t bytes = encode_message(header, to);
  if (header.kind == MessageKind::kEager && header.bytes > 0) {
    std::memcpy(to + bytes, data, header.bytes);
    bytes += header.bytes;
  }
  counters_.wire_sent += bytes;
  return with_peer(queues_->send_slot(slot, bytes));
}

/// Sends or announces the first request, if that is possible now.
Status VerbsEndpoint::send_next(bool& sent) {
  sent = false;
  Request& request = *sends_.first();
  if (slots_used_ - peer_slots_freed_ >= peer_sizes_.slots) return Status();
  if (request.capacity > most_eager()) return announce(request, sent);
  const int slot = queues_->take_slot();
  if (slot < 0) return Status();
  MessageHeader header;
  header.kind = MessageKind::kEager;
  header.sequence = request.sequence;
  header.tag = request.tag;
  header.check = request.check;
  header.bytes = request.capacity;
  ++slots_used_;
  sends_.pop();
  const Status posted = send_message(slot, header, request.data);
  counters_.payload_sent += request.capacity;
  end(request, Request::State::kDone);  // its bytes are in the slot
  sent = true;
  return posted;
}

Status VerbsEndpoint::announce(Request& request, bool& sent) {
  const auto free = std::find_if(outgoing_.begin(), outgoing_.end(),
                                 [](const Outgoing& outgoing) { return outgoing.request == nullptr; });
  if (free == outgoing_.end()) return Status();
  const int slot = queues_->take_slot();
  if (slot < 0) return Status();
  auto memory = VerbsCore::hold(ports_, request.data, request.capacity, false, request.memory);
  if (!memory.ok()) return memory.status().with_context(formatted("send to {}", peer()));
  MessageHeader header;
  header.kind = MessageKind::kAnnounce;
  header.sequence = request.sequence;
  header.tag = request.tag;
  header.check = request.check;
  header.rendezvous = static_cast<std::uint32_t>(free - outgoing_.begin());
  header.bytes = request.capacity;
  ++slots_used_;
  sends_.pop();
  free->request = &request;
  free->memory = std::move(*memory);
  sent = true;
  return send_message(slot, header, nullptr);
}

Status VerbsEndpoint::take_advertisement(const MessageHeader& header) {
  if (header.rendezvous >= outgoing_.size()) return bad_data("an advertisement for no message");
  Outgoing& outgoing = outgoing_[header.rendezvous];
  if (outgoing.request == nullptr || outgoing.address != 0 || header.address == 0) {
    return bad_data("an advertisement for no message");
  }
  outgoing.address = header.address;
  outgoing.keys = header.keys;
  writing_.push_back(header.rendezvous);
  return Status();
}

/// With several ports only some segments go to each pair ahead of time: the next one is for the port that is
/// free, so a slow one has a smaller share.
bool VerbsEndpoint::has_room(std::size_t pair) const noexcept {
  if (queues_->segment_room(pair) == 0) return false;
  return ports_.size() == 1 || under_way_[pair].size() < kSharedDepth;
}

/// Segments go to the data pairs in turn; a pair that is full is passed over.
Status VerbsEndpoint::write_segments() {
  std::size_t full = 0;
  while (!writing_.empty() && full < under_way_.size()) {
    if (segments_used_ - peer_segments_freed_ >= peer_sizes_.segments) return Status();
    const std::size_t pair = turn_;
    turn_ = (turn_ + 1) % under_way_.size();
    if (!has_room(pair)) {
      ++full;
      continue;
    }
    full = 0;
    ONEBIT_RETURN_IF_ERROR(write_segment(pair));
  }
  return Status();
}

/// The next one of the message whose turn it is.
Status VerbsEndpoint::write_segment(std::size_t pair) {
  const std::uint32_t number = writing_.front();
  Outgoing& outgoing = outgoing_[number];
  Request& request = *outgoing.request;
  const std::uint64_t most = segment_limit(request.capacity, ports_.size(), own_sizes().segment_bytes);
  const auto bytes = static_cast<std::uint32_t>(std::min(request.capacity - request.assigned, most));
  const std::uint32_t own_key = outgoing.memory[Introduction::port_of(pair, ports_.size())].local_key();
  const std::uint32_t peers_key = outgoing.keys[Introduction::port_of(pair, peer_ports_)];
  ONEBIT_RETURN_IF_ERROR(
      with_peer(queues_->write_segment(pair, request.data + request.assigned, bytes, own_key,
                                       outgoing.address + request.assigned, peers_key, number)));
  ++segments_used_;
  ++outgoing.segments_under_way;
  under_way_[pair].push_back({number, bytes});
  request.assigned += bytes;
  counters_.wire_sent += bytes;
  if (request.assigned == request.capacity) writing_.pop_front();
  return Status();
}

Status VerbsEndpoint::on_segment_sent(std::size_t pair) {
  queues_->segment_sent(pair);
  const Segment segment = under_way_[pair].front();
  under_way_[pair].pop_front();
  Outgoing& outgoing = outgoing_[segment.rendezvous];
  Request& request = *outgoing.request;
  --outgoing.segments_under_way;
  request.transferred += segment.bytes;
  counters_.payload_sent += segment.bytes;
  if (outgoing.segments_under_way > 0 || request.assigned < request.capacity) return Status();
  outgoing = Outgoing();
  end(request, Request::State::kDone);
  return Status();
}

/// False when the peer says to have freed what it never had.
bool VerbsEndpoint::take_credits(const MessageHeader& header) {
  if (header.slots_freed - peer_slots_freed_ > slots_used_ - peer_slots_freed_) return false;
  if (header.segments_freed - peer_segments_freed_ > segments_used_ - peer_segments_freed_) return false;
  peer_slots_freed_ = header.slots_freed;
  peer_segments_freed_ = header.segments_freed;
  return true;
}

}  // namespace onebit::transport
