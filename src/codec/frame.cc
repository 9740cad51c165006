#include "codec/frame.h"

#include <bit>
#include <cstring>
#include <limits>

namespace onebit::codec {
namespace {

constexpr std::byte kMagic[2] = {std::byte{'1'}, std::byte{'B'}};
constexpr unsigned kWholeLog2 = 255;

/// Where each field of the header is.
enum Offset : std::size_t {
  kMagicAt = 0,
  kVersionAt = 2,
  kCodecAt = 3,
  kBlockAt = 4,
  kScaleAt = 5,
  kReservedAt = 6,
  kElementsAt = 8,
  kReserved2At = 12,
};

unsigned block_field(std::uint32_t block) noexcept {
  return block == kWhole ? kWholeLog2 : static_cast<unsigned>(std::countr_zero(block));
}

unsigned field(std::span<const std::byte> frame, Offset at) noexcept {
  return std::to_integer<unsigned>(frame[at]);
}

/// A little-endian number of `bytes` bytes.
std::uint32_t number(std::span<const std::byte> frame, std::size_t at, std::size_t bytes) noexcept {
  std::uint32_t value = 0;
  for (std::size_t b = 0; b < bytes; ++b) value |= std::to_integer<std::uint32_t>(frame[at + b]) << (8 * b);
  return value;
}

Status differs(std::string_view what, std::uint64_t found, std::uint64_t expected) {
  return Status::error(Code::kDataError, "frame: {} is {}, expected {}", what, found, expected);
}

}  // namespace

void write_frame_header(std::byte* frame, std::size_t n, Parameters parameters) noexcept {
  std::memset(frame, 0, kFrameHeaderBytes);
  frame[kMagicAt] = kMagic[0];
  frame[kMagicAt + 1] = kMagic[1];
  frame[kVersionAt] = std::byte{kFrameVersion};
  frame[kCodecAt] = static_cast<std::byte>(CodecId::kOneBit);
  frame[kBlockAt] = static_cast<std::byte>(block_field(parameters.block));
  frame[kScaleAt] = static_cast<std::byte>(parameters.scale);
  for (std::size_t b = 0; b < 4; ++b) frame[kElementsAt + b] = static_cast<std::byte>(n >> (8 * b) & 0xff);
}

std::byte* frame_scales(std::byte* frame) noexcept {
  return frame + kFrameHeaderBytes;
}

std::uint8_t* frame_bits(std::byte* frame, std::size_t n, std::uint32_t block) noexcept {
  return reinterpret_cast<std::uint8_t*>(frame + kFrameHeaderBytes + 4 * scale_count(n, block));
}

Result<Packed> open_frame(std::span<const std::byte> frame, std::size_t n, Parameters parameters) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    return Status::error(Code::kInvalidArgument,
                         "frame: {} elements are more than a frame can hold (2^32 - 1)", n);
  }
  if (frame.size() < kFrameHeaderBytes) {
    return Status::error(Code::kDataError, "frame: {} bytes are shorter than its header of {}", frame.size(),
                         kFrameHeaderBytes);
  }
  if (frame[kMagicAt] != kMagic[0] || frame[kMagicAt + 1] != kMagic[1]) {
    return Status::error(Code::kDataError,
                         "frame: the magic is {:02x} {:02x}, expected {:02x} {:02x} (\"1B\")",
                         field(frame, kMagicAt), std::to_integer<unsigned>(frame[kMagicAt + 1]),
                         std::to_integer<unsigned>(kMagic[0]), std::to_integer<unsigned>(kMagic[1]));
  }
  const auto codec = static_cast<unsigned>(CodecId::kOneBit);
  const auto scale = static_cast<unsigned>(parameters.scale);
  const unsigned block = block_field(parameters.block);
  if (field(frame, kVersionAt) != kFrameVersion)
    return differs("version", field(frame, kVersionAt), kFrameVersion);
  if (field(frame, kCodecAt) != codec) return differs("codec id", field(frame, kCodecAt), codec);
  if (field(frame, kBlockAt) != block) {
    return differs("log2(block), where 255 is whole,", field(frame, kBlockAt), block);
  }
  if (field(frame, kScaleAt) != scale) return differs("scale rule", field(frame, kScaleAt), scale);
  if (const auto reserved = number(frame, kReservedAt, 2); reserved != 0) {
    return differs("reserved field at byte 6", reserved, 0);
  }
  if (const auto elements = number(frame, kElementsAt, 4); elements != n)
    return differs("elements", elements, n);
  if (const auto reserved = number(frame, kReserved2At, 4); reserved != 0) {
    return differs("reserved field at byte 12", reserved, 0);
  }
  if (frame.size() != frame_bytes(n, parameters.block)) {
    return differs("length in bytes", frame.size(), frame_bytes(n, parameters.block));
  }
  if (n % 8 != 0) {
    const unsigned unused = std::to_integer<unsigned>(frame.back()) >> (n % 8);
    if (unused != 0) return differs("unused bits of the last byte", unused, 0);
  }
  const std::byte* const scales = frame.data() + kFrameHeaderBytes;
  const std::byte* const bits = scales + 4 * scale_count(n, parameters.block);
  return Packed{scales, reinterpret_cast<const std::uint8_t*>(bits)};
}

}  // namespace onebit::codec
