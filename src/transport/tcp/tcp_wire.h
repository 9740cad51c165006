// What flows carry after their handshake: segments, a header of 40 bytes each, little endian.
//
//   0 magic u16 | 2 kind u8 | 3 zero u8 | 4 sequence u32 | 8 tag u64 | 16 check u32 | 20 segment bytes u32 |
//   24 message bytes u64 | 32 offset u64
//
// data: `segment bytes` of message number `sequence` of this direction, from `offset` on, follow the header.
//   A flow carries segments in the order of their sequences. A message of no bytes is one header.
// goodbye: the last thing on a flow; `sequence` is the number of messages that were sent.
// abort: the sender has failed; the reason follows as text of `segment bytes`.
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/little_endian.h"
#include "transport/transport.h"

namespace onebit::transport {

enum class SegmentKind : std::uint8_t { kData = 1, kGoodbye = 2, kAbort = 3 };

inline constexpr std::uint16_t kSegmentMagic = 0x1B57;
inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::uint32_t kMaxSegmentBytes = 1U << 30;
inline constexpr std::uint32_t kMaxReasonBytes = 512;

struct SegmentHeader {
  SegmentKind kind = SegmentKind::kData;
  std::uint32_t sequence = 0;
  std::uint64_t tag = 0;
  std::uint32_t check = 0;
  std::uint32_t segment_bytes = 0;
  std::uint64_t message_bytes = 0;
  std::uint64_t offset = 0;
};

inline void encode_header(const SegmentHeader& header, std::byte* to) noexcept {
  wire::store(to, kSegmentMagic);
  to[2] = static_cast<std::byte>(header.kind);
  to[3] = std::byte{0};
  wire::store(to + 4, header.sequence);
  wire::store(to + 8, header.tag);
  wire::store(to + 16, header.check);
  wire::store(to + 20, header.segment_bytes);
  wire::store(to + 24, header.message_bytes);
  wire::store(to + 32, header.offset);
}

/// Null when the header is sound in itself, else what is wrong with it.
inline const char* decode_header(const std::byte* from, SegmentHeader& header) noexcept {
  if (wire::load<std::uint16_t>(from) != kSegmentMagic || from[3] != std::byte{0}) {
    return "bytes that are no segment header";
  }
  header.kind = static_cast<SegmentKind>(from[2]);
  header.sequence = wire::load<std::uint32_t>(from + 4);
  header.tag = wire::load<std::uint64_t>(from + 8);
  header.check = wire::load<std::uint32_t>(from + 16);
  header.segment_bytes = wire::load<std::uint32_t>(from + 20);
  header.message_bytes = wire::load<std::uint64_t>(from + 24);
  header.offset = wire::load<std::uint64_t>(from + 32);
  switch (header.kind) {
    case SegmentKind::kData:
      if (header.message_bytes > kMaxMessageBytes) return "a message of an impossible size";
      if (header.segment_bytes > kMaxSegmentBytes || header.segment_bytes > header.message_bytes ||
          header.offset > header.message_bytes - header.segment_bytes) {
        return "a segment outside its message";
      }
      if (header.segment_bytes == 0 && header.message_bytes != 0) return "an empty segment";
      return nullptr;
    case SegmentKind::kGoodbye:
      return header.segment_bytes == 0 ? nullptr : "a goodbye with contents";
    case SegmentKind::kAbort:
      return header.segment_bytes <= kMaxReasonBytes ? nullptr : "a reason of an impossible size";
  }
  return "a segment of an unknown kind";
}

}  // namespace onebit::transport
