// What a call of the codec is told besides its data, and the sizes that follow from it: shared by the CPU's
// kernels and CUDA's. Constants and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onebit::codec {

/// The scale of a block of n elements: rms is sqrt(sum z^2 / n), mean is sum |z| / n.
enum class Scale : std::uint8_t { kRms = 0, kMean = 1 };

/// Elements a block; a power of two from kMinBlock to kMaxBlock, or kWhole.
constexpr std::uint32_t kMinBlock = 256;
constexpr std::uint32_t kMaxBlock = 65536;
/// One scale for a worker's whole buffer and one for an owner's partition.
constexpr std::uint32_t kWhole = 0;
/// In `whole` mode sums are taken over sub-blocks of this many elements, counted from the start of each
/// partition.
constexpr std::uint32_t kSubBlock = 2048;

struct Parameters {
  std::uint32_t block = 2048;
  Scale scale = Scale::kRms;
};

constexpr std::size_t bit_bytes(std::size_t elements) noexcept {
  return (elements + 7) / 8;
}
/// Scales in a piece of `elements` elements that starts at a block.
constexpr std::size_t scale_count(std::size_t elements, std::uint32_t block) noexcept {
  if (elements == 0) return 0;
  return block == kWhole ? 1 : (elements + block - 1) / block;
}
constexpr std::size_t sub_block_count(std::size_t elements) noexcept {
  return (elements + kSubBlock - 1) / kSubBlock;
}

}  // namespace onebit::codec
