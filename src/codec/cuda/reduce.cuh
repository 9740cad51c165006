// The kernel of a reduce-scatter's owner: what all ranks' pieces come to, in y's type, of which nothing is
// kept back.
//
// c is that of `average` (docs/format.md, section 5) without an error of the owner's, rounded to y's type;
// NaN where the scale of a rank is. A warp takes a unit of kRows rows, in which each rank has one scale.
// Threads: independent warps.
#pragma once

#include "codec/cuda/decode.cuh"
#include "codec/cuda/source.cuh"

namespace onebit::codec::cuda {

/// Writes a row of c. Where it is NaN all of it is, since its scale is.
template <bool kFull, typename Y>
__device__ __forceinline__ void store_reduced(const float (&c)[kHeld], unsigned count, Y* row) {
  if (is_nan(c[0])) {
    constexpr Level kNotANumber = {TypeTraits<Y>::kNanBits, 0};
    if constexpr (kFull) {
      decode_full(kNotANumber, 0, row);
    } else {
      decode_part(kNotANumber, 0, count, row);
    }
  } else if constexpr (kFull) {
    store_full(row, c);
  } else {
    store_part(row, count, c);
  }
}

/// Units are kRows rows: a block, or eight of its rows.
template <typename Y, unsigned kRows>
__global__ void __launch_bounds__(kThreads, 2)
    reduce_rows(const __grid_constant__ Batch<ReducePiece> batch, AverageOptions options) {
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const ReducePiece& piece = batch.pieces[unit.piece];
    const Averaged<float> source(
        {piece.bits, piece.scales, piece.stride, nullptr, nullptr, nullptr, nullptr, 0}, unit.first, options);
    Y* const y = static_cast<Y*>(piece.y) + unit.first;
    float c[kRows][kHeld];
    if (unit.count == kRows * kRow && is_aligned(y)) {
      source.template load_average<kRows, 1, true>(0, unit.count, c);
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) store_reduced<true>(c[row], kRow, y + row * kRow);
    } else {
      source.template load_average<kRows, 1, false>(0, unit.count, c);
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) {
        store_reduced<false>(c[row], remaining(unit.count, row * kRow), y + row * kRow);
      }
    }
  }
}

}  // namespace onebit::codec::cuda

/// All instances for results of a type, named for the stand-in.
#define ONEBIT_REDUCE_KERNELS(Y)        \
  ONEBIT_CUDA_KERNEL(reduce_rows<Y, 1>) \
  ONEBIT_CUDA_KERNEL(reduce_rows<Y, 2>) \
  ONEBIT_CUDA_KERNEL(reduce_rows<Y, 4>) \
  ONEBIT_CUDA_KERNEL(reduce_rows<Y, 8>)
