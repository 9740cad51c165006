#include "transport/verbs/verbs_wire.h"

#include <algorithm>
#include <cstring>

#include "transport/controlled_wire.h"
#include "transport/little_endian.h"

namespace onebit::transport {
namespace {

constexpr std::uint16_t kMessageMagic = 0x1B5B;
constexpr std::uint8_t kIntroductionVersion = 2;
// kind u8 | version u8 | ethernet u8 | mtu u8 | lid u16 | pairs u16 | gid 16 | first packet u32 | slots u32 |
// slot bytes u32 | rendezvous u32 | segments u32, then u32 for each pair
constexpr std::size_t kIntroductionFixed = 44;
static_assert(kIntroductionFixed + 4 * (1 + kMaxPairs) <= kMaxControlBytes);

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
  wire::store(to + 48, header.key);
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
  header.key = wire::load<std::uint32_t>(from + 48);
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
  std::vector<std::byte> bytes(kIntroductionFixed + 4 * introduction.pairs.size());
  std::byte* const to = bytes.data();
  to[0] = static_cast<std::byte>(ControlKind::kIntroduction);
  to[1] = std::byte{kIntroductionVersion};
  to[2] = std::byte{introduction.ethernet};
  to[3] = std::byte{introduction.mtu};
  wire::store(to + 4, introduction.lid);
  wire::store(to + 6, static_cast<std::uint16_t>(introduction.pairs.size()));
  std::memcpy(to + 8, introduction.gid.raw, sizeof introduction.gid.raw);
  wire::store(to + 24, introduction.first_packet);
  wire::store(to + 28, introduction.sizes.slots);
  wire::store(to + 32, introduction.sizes.slot_bytes);
  wire::store(to + 36, introduction.sizes.rendezvous);
  wire::store(to + 40, introduction.sizes.segments);
  for (std::size_t i = 0; i < introduction.pairs.size(); ++i) {
    wire::store(to + kIntroductionFixed + 4 * i, introduction.pairs[i]);
  }
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
  const std::byte* const from = bytes.data();
  Introduction introduction;
  introduction.ethernet = from[2] != std::byte{0};
  introduction.mtu = static_cast<std::uint8_t>(from[3]);
  introduction.lid = wire::load<std::uint16_t>(from + 4);
  const auto pairs = wire::load<std::uint16_t>(from + 6);
  std::memcpy(introduction.gid.raw, from + 8, sizeof introduction.gid.raw);
  introduction.first_packet = wire::load<std::uint32_t>(from + 24);
  introduction.sizes.slots = wire::load<std::uint32_t>(from + 28);
  introduction.sizes.slot_bytes = wire::load<std::uint32_t>(from + 32);
  introduction.sizes.rendezvous = wire::load<std::uint32_t>(from + 36);
  introduction.sizes.segments = wire::load<std::uint32_t>(from + 40);
  if (pairs < 2 || pairs > 1 + kMaxPairs || bytes.size() != kIntroductionFixed + 4UL * pairs) return bad;
  if (!sound(introduction.sizes) || introduction.mtu < IBV_MTU_256 || introduction.mtu > IBV_MTU_4096)
    return bad;
  for (std::size_t i = 0; i < pairs; ++i) {
    introduction.pairs.push_back(wire::load<std::uint32_t>(from + kIntroductionFixed + 4 * i));
  }
  return introduction;
}

}  // namespace onebit::transport
