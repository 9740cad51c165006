// The kernels of `whole` mode: the sums of sub-blocks, and coding with a given scale. A warp takes a unit.
//
// The order of all sums is docs/format.md's, section 5.
#pragma once

#include "codec/cuda/code.cuh"

namespace onebit::codec::cuda {

constexpr unsigned kSubBlockRows = kSubBlock / kRow;
/// Rows that a warp quantizes at once.
constexpr unsigned kQuantizeRows = 4;
constexpr unsigned kQuantizeTile = kQuantizeRows * kRow;

/// z.
template <bool kFull, typename X, typename E>
__device__ __forceinline__ void load_for_sum(const Compensated<X, E>& source, unsigned count,
                                             float (&z)[kSubBlockRows][kHeld]) {
  source.template load<kSubBlockRows, 1, kFull>(0, count, z);
}

/// c, which is written to `averaged`, and z.
template <bool kFull, typename E>
__device__ __forceinline__ void load_for_sum(const Averaged<E>& source, unsigned count,
                                             float (&z)[kSubBlockRows][kHeld]) {
  source.template load_average<kSubBlockRows, 1, kFull>(0, count, z);
#pragma unroll
  for (unsigned row = 0; row < kSubBlockRows; ++row) {
#pragma unroll
    for (unsigned k = 0; k < kHeld; ++k) z[row][k] = canonical(z[row][k]);
    float* const to = source.averaged + row * kRow;
    if constexpr (kFull) {
      store_full(to, z[row]);
    } else {
      store_part(to, remaining(count, row * kRow), z[row]);
    }
  }
  source.template add_errors<kSubBlockRows, 1, kFull>(0, count, z);
}

/// The sums of z's sub-blocks, which are the units.
template <typename Source>
__global__ void __launch_bounds__(kThreads, 2)
    sum_sub_blocks(const __grid_constant__ Batch<typename Source::Piece> batch, Scale rule,
                   typename Source::Options options) {
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const auto& piece = batch.pieces[unit.piece];
    const Source source(piece, unit.first, options);
    float z[kSubBlockRows][kHeld];
    if (unit.count == kSubBlock && source.aligned()) {
      load_for_sum<true>(source, unit.count, z);
    } else {
      load_for_sum<false>(source, unit.count, z);
    }
    const float sum = canonical(sum_rows(rule, z));
    if (warp_thread() == 0) Source::scales(piece)[unit.index] = sum;
  }
}

/// Codes z with the piece's one scale. Units are tiles of kQuantizeTile elements.
template <typename X, typename E>
__global__ void __launch_bounds__(kThreads, 2)
    quantize_tiles(const __grid_constant__ Batch<EncodePiece> batch) {
  using Source = Compensated<X, E>;
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const EncodePiece& piece = batch.pieces[unit.piece];
    const Source source(piece, unit.first, {});
    const float scale = *piece.scales;
    std::uint32_t* const words = piece.bits + unit.first / 32;
    float z[kQuantizeRows][kHeld];
    if (unit.count == kQuantizeTile && source.aligned()) {
      source.template load<kQuantizeRows, 1, true>(0, unit.count, z);
      quantize_rows<kQuantizeRows, 1, true>(scale, 0, unit.count, z, source.error, words);
    } else {
      source.template load<kQuantizeRows, 1, false>(0, unit.count, z);
      quantize_rows<kQuantizeRows, 1, false>(scale, 0, unit.count, z, source.error, words);
    }
  }
}

}  // namespace onebit::codec::cuda
