// The frame: what one coded piece looks like on the wire. docs/format.md is the definition.
//
//   byte 0-1  magic "1B"       2  version (1)     3  codec id (1 = 1-bit block)
//   4         log2(block), 255 = whole            5  scale rule (0 rms, 1 mean)    6-7  reserved, 0
//   8-11      elements, u32    12-15  reserved, 0
//   16 ...    scales (fp32, little endian), then bits, no padding
// Invariant: a frame's length follows from its header alone. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "codec/codec.h"

namespace onebit::codec {

constexpr std::uint8_t kFrameVersion = 1;
constexpr std::size_t kFrameHeaderBytes = 16;
enum class CodecId : std::uint8_t { kOneBit = 1 };

/// Bytes of a frame of n elements, header included. n = 0 gives a bare header.
constexpr std::size_t frame_bytes(std::size_t n, std::uint32_t block) noexcept {
  return kFrameHeaderBytes + 4 * scale_count(n, block) + bit_bytes(n);
}

/// Writes the header of a frame of n elements (n < 2^32) to `frame`.
void write_frame_header(std::byte* frame, std::size_t n, Parameters parameters) noexcept;
/// Where the scales and the bits of a frame with n elements are to be written or read.
std::byte* frame_scales(std::byte* frame) noexcept;
std::uint8_t* frame_bits(std::byte* frame, std::size_t n, std::uint32_t block) noexcept;

/// Checks that `frame` is a whole frame of exactly n elements with these parameters, and gives its parts. A
/// kDataError says which field differs, with both values.
Result<Packed> open_frame(std::span<const std::byte> frame, std::size_t n, Parameters parameters);

}  // namespace onebit::codec
