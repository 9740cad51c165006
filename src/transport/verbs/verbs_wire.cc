#include "transport/verbs/verbs_wire.h"

#include <algorithm>
#include <cstring>

#include "transport/controlled_wire.h"
#include "transport/little_endian.h"

namespace onebit::transport {
namespace {

constexpr std::uint16_t kMessageMagic = 0x1B5B;
constexpr std::uint8_t kIntroductionVersion = 4;
// kind u8 | version u8 | ports u8 | pairs u8 | first packet u32 | slots u32 | slot bytes u32 | rendezvous u32
// | segments u32 | announced only u32, then for each port: gid 16 | lid u16 | mtu u8 | ethernet u8, then u32
// for each pair
constexpr std::size_t kIntroductionFixed = 28;
constexpr std::size_t kPortBytes = 20;
static_assert(kIntroductionFixed + kPortBytes * kMaxPorts + 4 * (1 + kMaxPairs) <= kMaxControlBytes);

bool sound(const QueueSizes& sizes) noexcept {
  const auto within = [](std::uint32_t value) { return value >= 1 && value <= QueueSizes::kMost; };
  return within(sizes.slots) && within(sizes.rendezvous) && within(sizes.segments) &&
         sizes.slot_bytes >= kMessageHeaderBytes && sizes.slot_bytes <= 1U << 20;
}

}  // namespace

std::size_t encode_message(const MessageHeader& header, std::byte* to) noexcept {
  wire::store(to, kMessageMagic);
  to[2] = static_cast<std::byte>(header.kind);
  to[3] = std::byte{0};
  wire::store(to + 4, header.slots_freed);
  wire::store(to + 8, header.segments_freed);
  wire::store(to + 12, header.sequence);
  wire::store(to + 16, header.tag);
  wire::store(to + 24, header.check);
  if (header.kind == MessageKind::kEager) return kEagerHeaderBytes;
  wire::store(to + 28, header.rendezvous);
  wire::store(to + 32, header.bytes);
  wire::store(to + 40, header.address);
  for (std::size_t i = 0; i < kMaxPorts; ++i) wire::store(to + 48 + 4 * i, header.keys[i]);
  return kMessageHeaderBytes;
}

const char* decode_message(const std::byte* from, std::size_t bytes, MessageHeader& header) noexcept {
  if (bytes < kEagerHeaderBytes || wire::load<std::uint16_t>(from) != kMessageMagic) {
    return "bytes that are no message";
  }
  header.kind = static_cast<MessageKind>(from[2]);
  header.slots_freed = wire::load<std::uint32_t>(from + 4);
  header.segments_freed = wire::load<std::uint32_t>(from + 8);
  header.sequence = wire::load<std::uint32_t>(from + 12);
  header.tag = wire::load<std::uint64_t>(from + 16);
  header.check = wire::load<std::uint32_t>(from + 24);
  if (header.kind == MessageKind::kEager) {
    header.bytes = bytes - kEagerHeaderBytes;
    return nullptr;
  }
  if (bytes != kMessageHeaderBytes) return "a message of another size than its kind has";
  header.rendezvous = wire::load<std::uint32_t>(from + 28);
  header.bytes = wire::load<std::uint64_t>(from + 32);
  header.address = wire::load<std::uint64_t>(from + 40);
  for (std::size_t i = 0; i < kMaxPorts; ++i) header.keys[i] = wire::load<std::uint32_t>(from + 48 + 4 * i);
  switch (header.kind) {
    case MessageKind::kAnnounce:
      return header.bytes > 0 && header.bytes < 1ULL << 46 ? nullptr : "a message of an impossible size";
    case MessageKind::kEager:
    case MessageKind::kAdvertise:
    case MessageKind::kCredits:
      return nullptr;
  }
  return "a message of an unknown kind";
}

std::vector<std::byte> encode_introduction(const Introduction& introduction) {
  const std::size_t ports = introduction.ports.size();
  const std::size_t pairs = introduction.pairs.size();
  std::vector<std::byte> bytes(kIntroductionFixed + kPortBytes * ports + 4 * pairs);
  std::byte* to = bytes.data();
  to[0] = static_cast<std::byte>(ControlKind::kIntroduction);
  to[1] = std::byte{kIntroductionVersion};
  to[2] = static_cast<std::byte>(ports);
  to[3] = static_cast<std::byte>(pairs);
  wire::store(to + 4, introduction.first_packet);
  wire::store(to + 8, introduction.sizes.slots);
  wire::store(to + 12, introduction.sizes.slot_bytes);
  wire::store(to + 16, introduction.sizes.rendezvous);
  wire::store(to + 20, introduction.sizes.segments);
  wire::store(to + 24, static_cast<std::uint32_t>(introduction.announced_only));
  to += kIntroductionFixed;
  for (const PortPlace& port : introduction.ports) {
    std::memcpy(to, port.gid.raw, sizeof port.gid.raw);
    wire::store(to + 16, port.lid);
    to[18] = std::byte{port.mtu};
    to[19] = std::byte{port.ethernet};
    to += kPortBytes;
  }
  for (std::size_t i = 0; i < pairs; ++i) wire::store(to + 4 * i, introduction.pairs[i]);
  return bytes;
}

Result<Introduction> decode_introduction(std::span<const std::byte> bytes) {
  const Status bad = bad_control();
  if (bytes.size() < kIntroductionFixed || bytes[0] != static_cast<std::byte>(ControlKind::kIntroduction)) {
    return bad;
  }
  if (bytes[1] != std::byte{kIntroductionVersion}) {
    return Status(Code::kInvalidUsage, "it has another version of onebit's verbs transport");
  }
  const std::byte* from = bytes.data();
  const auto ports = static_cast<std::size_t>(from[2]);
  const auto pairs = static_cast<std::size_t>(from[3]);
  if (ports < 1 || ports > kMaxPorts || pairs < 2 || pairs > 1 + kMaxPairs ||
      bytes.size() != kIntroductionFixed + kPortBytes * ports + 4 * pairs) {
    return bad;
  }
  Introduction introduction;
  introduction.first_packet = wire::load<std::uint32_t>(from + 4);
  introduction.sizes.slots = wire::load<std::uint32_t>(from + 8);
  introduction.sizes.slot_bytes = wire::load<std::uint32_t>(from + 12);
  introduction.sizes.rendezvous = wire::load<std::uint32_t>(from + 16);
  introduction.sizes.segments = wire::load<std::uint32_t>(from + 20);
  introduction.announced_only = wire::load<std::uint32_t>(from + 24) != 0;
  if (!sound(introduction.sizes)) return bad;
  from += kIntroductionFixed;
  for (std::size_t i = 0; i < ports; ++i, from += kPortBytes) {
    PortPlace& port = introduction.ports.emplace_back();
    std::memcpy(port.gid.raw, from, sizeof port.gid.raw);
    port.lid = wire::load<std::uint16_t>(from + 16);
    port.mtu = static_cast<std::uint8_t>(from[18]);
    port.ethernet = from[19] != std::byte{0};
    if (port.mtu < IBV_MTU_256 || port.mtu > IBV_MTU_4096) return bad;
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    introduction.pairs.push_back(wire::load<std::uint32_t>(from + 4 * i));
  }
  return introduction;
}

}  // namespace onebit::transport
