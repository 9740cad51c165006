// The decode kernel: y = +-scale by its bit.
//
// A scale is converted to y's type once a row; the rest is integer selection. A warp takes a tile of eight
// rows, so that their bits are all asked for before the first y is written. Threads: independent warps.
#pragma once

#include "codec/cuda/code.cuh"

namespace onebit::codec::cuda {

constexpr unsigned kDecodeRows = 8;
constexpr unsigned kDecodeTile = kDecodeRows * kRow;

template <typename Y>
__device__ __forceinline__ std::uint32_t bits_of(float value) {
  if constexpr (sizeof(Y) == 4) {
    return __float_as_uint(value);
  } else {
    const float both[2] = {value, 0.0f};
    return pack<Y>(both) & 0xffffU;
  }
}

template <typename Y>
struct TypeTraits;
template <>
struct TypeTraits<float> {
  static constexpr std::uint32_t kNanBits = 0x7fc00000, kSign = 0x80000000;
};
template <>
struct TypeTraits<__half> {
  static constexpr std::uint32_t kNanBits = 0x7e00, kSign = 0x8000;
};
template <>
struct TypeTraits<__nv_bfloat16> {
  static constexpr std::uint32_t kNanBits = 0x7fc0, kSign = 0x8000;
};

/// y's bits for a bit 1, and what a bit 0 changes in them.
struct Level {
  std::uint32_t plus, flip;
};
template <typename Y>
__device__ __forceinline__ Level level_of(float scale) {
  if (is_nan(scale)) return {TypeTraits<Y>::kNanBits, 0};
  return {bits_of<Y>(scale), TypeTraits<Y>::kSign};
}
__device__ __forceinline__ std::uint32_t select(Level level, std::uint32_t word, unsigned bit) {
  return level.plus ^ ((word >> bit & 1U) != 0 ? 0 : level.flip);
}

__device__ __forceinline__ void decode_full(Level level, std::uint32_t word, float* row) {
  word >>= held_bit(0);
  auto* quads = reinterpret_cast<uint4*>(row + first_quad());
  quads[0] = make_uint4(select(level, word, 0), select(level, word, 1), select(level, word, 2),
                        select(level, word, 3));
  quads[2] = make_uint4(select(level, word, 8), select(level, word, 9), select(level, word, 10),
                        select(level, word, 11));
}

/// Thread t has the elements from 8 t on: byte t % 4 of its word.
template <typename Y>
__device__ __forceinline__ void decode_full(Level level, std::uint32_t word, Y* row) {
  static_assert(sizeof(Y) == 2);
  word >>= warp_thread() % 4 * 8;
  std::uint32_t pairs[4];
#pragma unroll
  for (unsigned p = 0; p < 4; ++p)
    pairs[p] = select(level, word, 2 * p) | select(level, word, 2 * p + 1) << 16;
  *reinterpret_cast<uint4*>(row + warp_thread() * kHeld) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <typename Y>
__device__ __forceinline__ void decode_part(Level level, std::uint32_t word, unsigned count, Y* row) {
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) {
    const unsigned element = held_element(k);
    const std::uint32_t bits = select(level, word, held_bit(k));
    if (element < count) memcpy(static_cast<void*>(row + element), &bits, sizeof(Y));
  }
}

/// `block`: elements that share one scale, kWhole for all. Units are tiles of kDecodeTile elements.
template <typename Y>
__global__ void __launch_bounds__(kThreads, 4)
    decode_tiles(const __grid_constant__ Batch<DecodePiece> batch, unsigned block) {
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const DecodePiece& piece = batch.pieces[unit.piece];
    const std::uint32_t* const words = piece.bits + unit.first / 32 + row_word();
    Y* const y = static_cast<Y*>(piece.y) + unit.first;
    const bool full = unit.count == kDecodeTile && is_aligned(y);
    std::uint32_t word[kDecodeRows];
    float scale[kDecodeRows];
#pragma unroll
    for (unsigned row = 0; row < kDecodeRows; ++row) {
      const bool there = remaining(unit.count, row * kRow) > row_word() * 32;
      word[row] = there ? words[row * 8] : 0;
      const std::size_t first = unit.first + row * kRow;
      scale[row] =
          remaining(unit.count, row * kRow) > 0 ? piece.scales[block == kWhole ? 0 : first / block] : 0.0f;
    }
#pragma unroll
    for (unsigned row = 0; row < kDecodeRows; ++row) {
      const Level level = level_of<Y>(scale[row]);
      if (full) {
        decode_full(level, word[row], y + row * kRow);
      } else {
        decode_part(level, word[row], remaining(unit.count, row * kRow), y + row * kRow);
      }
    }
  }
}

}  // namespace onebit::codec::cuda
