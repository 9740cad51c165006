// What two ends of the UCX transport say to each other, little endian.
//
// Over UCX, active messages, each with a header and at most one segment of a message:
//   0 token u64 | 8 segment u32 | 12 freed u32 | 16 tag u64 | 24 check u32 | 28 kind u8 | 29 zero u24, and of
//   `first`: 32 message bytes u64
// whole: a message of one segment. first, next: of several; those of one message follow each other. credits:
//   nothing but `freed`, which every header has: how many segments this end has matched since the beginning,
//   modulo 2^32. `segment` counts the segments of a direction. The token is the receiver's, told to the peer
//   only: what comes without it is of a stranger.
// Over the control connection (controlled_wire.h): the connecting end's hello says which core it belongs to;
// the accepting one chooses the workers (ucx_core.h) and introduces its own; then the connecting one does.
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace onebit::transport {

/// How much an end takes before its messages are matched, and how it cuts what it sends.
struct UcxWindow {
  std::uint32_t segments = 32;            ///< that may come before they are matched
  std::uint32_t segment_bytes = 1 << 20;  ///< at most; the sender's own matter

  static constexpr std::uint32_t kMost = 4096;
};

enum class SegmentOf : std::uint8_t { kWhole = 1, kFirst = 2, kNext = 3, kCredits = 4 };

struct UcxHeader {
  std::uint64_t token = 0;
  std::uint32_t segment = 0;
  std::uint32_t freed = 0;
  std::uint64_t tag = 0;
  std::uint32_t check = 0;
  SegmentOf kind = SegmentOf::kCredits;
  std::uint64_t bytes = 0;  ///< of the message, where this is its first segment and not all of it
};
inline constexpr std::size_t kMostUcxHeader = 40;
/// The number of bytes that were written.
std::size_t encode_ucx(const UcxHeader& header, std::array<std::byte, kMostUcxHeader>& to) noexcept;
/// Null when a header with a segment of this size is sound in itself, else what is wrong with it.
const char* decode_ucx(std::span<const std::byte> from, std::size_t segment_bytes,
                       UcxHeader& header) noexcept;

/// What a peer must know to send to this end.
struct UcxIntroduction {
  std::uint64_t core = 0;
  std::uint8_t own_worker = 0;
  std::uint8_t peer_worker = 0;
  std::uint64_t token = 0;
  std::uint32_t window = 0;  ///< segments
  std::vector<std::byte> address;
};
inline constexpr std::size_t kMostUcxAddress = 16 << 10;
inline constexpr std::size_t kMostUcxControl = kMostUcxAddress + 64;

std::vector<std::byte> encode_ucx_introduction(const UcxIntroduction& introduction);
Result<UcxIntroduction> decode_ucx_introduction(std::span<const std::byte> bytes);
/// Of the connecting end.
std::vector<std::byte> encode_ucx_hello(std::uint64_t core);
Result<std::uint64_t> decode_ucx_hello(std::span<const std::byte> bytes);

}  // namespace onebit::transport
