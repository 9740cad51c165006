// Where the z of a block comes from: a tensor with its error, or the average of all ranks' pieces.
//
// A source stands at a block's first element. `load` fills z for kRows rows, `kStep` rows apart; kFull
// promises that all of them are full and aligned. All threads of a warp call together.
#pragma once

#include "codec/cuda/pieces.h"
#include "codec/cuda/row.cuh"
#include "codec/cuda/sum.cuh"

namespace onebit::codec::cuda {

__device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

/// Adds the errors of a row to z.
template <bool kFull, typename E>
__device__ __forceinline__ void add_error(const E* error, unsigned count, float (&z)[kHeld]) {
  float e[kHeld];
  if constexpr (kFull) {
    load_full(error, e);
  } else {
    load_part(error, count, e);
  }
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) z[k] = __fadd_rn(z[k], e[k]);
}

/// z = x + error.
template <typename X, typename E>
struct Compensated {
  using Piece = EncodePiece;
  using Error = E;
  struct Options {};

  const X* x;
  E* error;

  __device__ Compensated(const Piece& piece, std::size_t first, Options)
      : x(static_cast<const X*>(piece.x) + first), error(static_cast<E*>(piece.error) + first) {}
  static __device__ std::uint32_t* bits(const Piece& piece) { return piece.bits; }
  static __device__ float* scales(const Piece& piece) { return piece.scales; }

  __device__ bool aligned() const { return is_aligned(x); }

  template <unsigned kRows, unsigned kStep, bool kFull>
  __device__ __forceinline__ void load(unsigned first_row, unsigned count, float (&z)[kRows][kHeld]) const {
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      const unsigned at = (first_row + i * kStep) * kRow;
      if constexpr (kFull) {
        load_full(x + at, z[i]);
      } else {
        load_part(x + at, remaining(count, at), z[i]);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      const unsigned at = (first_row + i * kStep) * kRow;
      add_error<kFull>(error + at, remaining(count, at), z[i]);
    }
  }
};

/// What the averaging of a launch's pieces has in common.
struct AverageOptions {
  unsigned ranks;
  float factor;    ///< fp32(1/ranks) for avg, 1 for sum
  unsigned block;  ///< elements that share one scale; kWhole: all of a piece
};

/// c = the sum over the ranks, in their order, of +-(scale * factor); z = c + the owner's error.
template <typename E>
struct Averaged {
  using Piece = AveragePiece;
  using Error = E;
  using Options = AverageOptions;

  const std::uint32_t* words;
  const float* scale;
  std::size_t stride;
  E* error;
  float* averaged;
  Options options;

  __device__ Averaged(const Piece& piece, std::size_t first, Options all)
      : words(piece.bits + first / 32),
        scale(piece.scales + (all.block == kWhole ? 0 : first / all.block)),
        stride(piece.stride),
        error(static_cast<E*>(piece.error) + first),
        averaged(piece.averaged + first),
        options(all) {}
  static __device__ std::uint32_t* bits(const Piece& piece) { return piece.new_bits; }
  static __device__ float* scales(const Piece& piece) { return piece.new_scales; }

  __device__ bool aligned() const { return true; }

  template <typename T>
  __device__ __forceinline__ const T* of_rank(const T* of_rank_0, unsigned rank) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(of_rank_0) + rank * stride);
  }
  /// +-term by held element k's bit.
  static __device__ __forceinline__ float with_sign(float term, std::uint32_t word, unsigned k) {
    const std::uint32_t negative = ~word << (31 - k % 4 - k / 4 * 8) & 0x80000000U;
    return __uint_as_float(__float_as_uint(term) ^ negative);
  }

  /// The terms of one rank. The first rank's are the sum, the others' are added.
  template <unsigned kRows, unsigned kStep, bool kFull, bool kFirst>
  __device__ __forceinline__ void add_rank(unsigned rank, unsigned first_row, unsigned count,
                                           float (&z)[kRows][kHeld]) const {
    const std::uint32_t* const from = of_rank(words, rank) + row_word();
    const float term = __fmul_rn(*of_rank(scale, rank), options.factor);
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      const unsigned row = first_row + i * kStep;
      const bool there = kFull || remaining(count, row * kRow) > row_word() * 32;
      const std::uint32_t word = (there ? from[row * 8] : 0) >> held_bit(0);
#pragma unroll
      for (unsigned k = 0; k < kHeld; ++k) {
        const float signed_term = with_sign(term, word, k);
        z[i][k] = kFirst ? signed_term : __fadd_rn(z[i][k], signed_term);
      }
    }
  }

  /// c alone.
  template <unsigned kRows, unsigned kStep, bool kFull>
  __device__ __forceinline__ void load_average(unsigned first_row, unsigned count,
                                               float (&z)[kRows][kHeld]) const {
    add_rank<kRows, kStep, kFull, true>(0, first_row, count, z);
    // The bits of four rows are loads enough in flight.
    [[maybe_unused]] constexpr unsigned kRanksAtOnce = kRows < 4 ? 2 : 1;
#pragma unroll kRanksAtOnce
    for (unsigned rank = 1; rank < options.ranks; ++rank) {
      add_rank<kRows, kStep, kFull, false>(rank, first_row, count, z);
    }
    if constexpr (!kFull) {
#pragma unroll
      for (unsigned i = 0; i < kRows; ++i) {
        const unsigned left = remaining(count, (first_row + i * kStep) * kRow);
#pragma unroll
        for (unsigned k = 0; k < kHeld; ++k) z[i][k] = held_element(k) < left ? z[i][k] : 0.0f;
      }
    }
  }

  template <unsigned kRows, unsigned kStep, bool kFull>
  __device__ __forceinline__ void add_errors(unsigned first_row, unsigned count,
                                             float (&z)[kRows][kHeld]) const {
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      const unsigned at = (first_row + i * kStep) * kRow;
      add_error<kFull>(error + at, remaining(count, at), z[i]);
    }
  }

  template <unsigned kRows, unsigned kStep, bool kFull>
  __device__ __forceinline__ void load(unsigned first_row, unsigned count, float (&z)[kRows][kHeld]) const {
    load_average<kRows, kStep, kFull>(first_row, count, z);
    add_errors<kRows, kStep, kFull>(first_row, count, z);
  }
};

}  // namespace onebit::codec::cuda
