// The kernels that code z in 1 bit, block by block: encode and average are these with their sources.
//
// Blocks up to 2048 elements: a warp a block, z in registers, no barrier. Larger ones: eight warps a block;
// their rows meet in shared memory, where thread l adds lane l. Up to kHeldBlock elements z stays in
// registers; beyond, the second sweep reads x and the error again. Both walk over the launch's units with a
// grid sized to the device.
#pragma once

#include "codec/cuda/source.cuh"

namespace onebit::codec::cuda {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kWarp;
/// The largest block whose z stays in registers.
constexpr unsigned kHeldBlock = 8 * kWarps * kRow;

/// A unit of a launch: `count` elements of `piece`, from element `first` on.
struct Unit {
  unsigned piece;
  std::size_t first;
  unsigned count;
  std::uint32_t index;  ///< in its piece
};

/// Finds a unit from where the last, lower one was found.
template <typename Piece>
__device__ __forceinline__ Unit find_unit(const Batch<Piece>& batch, std::uint32_t number, unsigned piece) {
  while (number >= batch.first_unit[piece + 1]) ++piece;
  const std::uint32_t index = number - batch.first_unit[piece];
  const std::size_t first = static_cast<std::size_t>(index) * batch.unit_elements;
  const std::size_t left = batch.pieces[piece].elements - first;
  return {piece, first, left < batch.unit_elements ? static_cast<unsigned>(left) : batch.unit_elements,
          index};
}

/// Codes a row: writes its bits and, when the scale is not NaN, its new errors.
template <bool kFull, typename E>
__device__ __forceinline__ void quantize_row(float scale, unsigned count, const float (&z)[kHeld], E* error,
                                             std::uint32_t* words) {
  const bool keeps = is_nan(scale);
  float new_error[kHeld];
  std::uint32_t word = 0;
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) {
    const bool positive = keeps || !(z[k] < 0.0f);
    new_error[k] = __fsub_rn(z[k], positive ? scale : -scale);
    const bool there = kFull || held_element(k) < count;
    word |= (there && positive ? 1U : 0U) << (k % 4 + k / 4 * 8);
  }
  word <<= held_bit(0);
  word |= __shfl_xor_sync(kAllLanes, word, 1);
  word |= __shfl_xor_sync(kAllLanes, word, 2);
  const bool has_room = kFull || row_word() * 32 < (count + 127) / 128 * 128;
  if (warp_thread() % 4 == 0 && has_room) words[row_word()] = word;
  if (keeps) return;
  if constexpr (kFull) {
    store_full(error, new_error);
  } else {
    store_part(error, count, new_error);
  }
}

template <unsigned kRows, unsigned kStep, bool kFull, typename E>
__device__ __forceinline__ void quantize_rows(float scale, unsigned first_row, unsigned count,
                                              const float (&z)[kRows][kHeld], E* error,
                                              std::uint32_t* words) {
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) {
    const unsigned row = first_row + i * kStep;
    quantize_row<kFull>(scale, remaining(count, row * kRow), z[i], error + row * kRow, words + row * 8);
  }
}

template <unsigned kRows>
__device__ __forceinline__ float sum_rows(Scale rule, const float (&z)[kRows][kHeld]) {
  float lane[kHeld] = {};
  if (rule == Scale::kRms) {
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
#pragma unroll
      for (unsigned k = 0; k < kHeld; ++k) lane[k] = add_term(Scale::kRms, lane[k], z[i][k]);
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
#pragma unroll
      for (unsigned k = 0; k < kHeld; ++k) lane[k] = add_term(Scale::kMean, lane[k], z[i][k]);
    }
  }
  return fold(lane);
}

/// One block by one warp.
template <bool kFull, unsigned kRows, typename Source>
__device__ __forceinline__ void code_block(const Source& source, unsigned count, Scale rule, float* scale,
                                           std::uint32_t* words) {
  float z[kRows][kHeld];
  source.template load<kRows, 1, kFull>(0, count, z);
  const float s = block_scale(rule, sum_rows(rule, z), count);
  if (warp_thread() == 0) *scale = s;
  quantize_rows<kRows, 1, kFull>(s, 0, count, z, source.error, words);
}

/// Units are blocks of kRows rows.
template <typename Source, unsigned kRows>
__global__ void __launch_bounds__(kThreads, 2)
    code_small_blocks(const __grid_constant__ Batch<typename Source::Piece> batch, Scale rule,
                      typename Source::Options options) {
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp; number < units;
       number += gridDim.x * kWarps) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const auto& piece = batch.pieces[unit.piece];
    const Source source(piece, unit.first, options);
    float* const scale = Source::scales(piece) + unit.index;
    std::uint32_t* const words = Source::bits(piece) + unit.first / 32;
    if (unit.count == kRows * kRow && source.aligned()) {
      code_block<true, kRows>(source, unit.count, rule, scale, words);
    } else {
      code_block<false, kRows>(source, unit.count, rule, scale, words);
    }
  }
}

/// The shared memory of a block that eight warps code.
struct Meeting {
  float4 terms[2][kWarps][kRow / 4];  ///< the warps' rows, in turns
  float4 lanes[kRow / 4];
};

/// Adds kRows groups of eight rows to lane threadIdx.x: warp w gives row w of each.
template <unsigned kRows>
__device__ __forceinline__ float add_groups(Scale rule, const float (&z)[kRows][kHeld], float lane,
                                            Meeting& meeting) {
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) {
    float terms[kHeld];
#pragma unroll
    for (unsigned k = 0; k < kHeld; ++k)
      terms[k] = rule == Scale::kRms ? __fmul_rn(z[i][k], z[i][k]) : fabsf(z[i][k]);
    auto& rows = meeting.terms[i % 2];
    store_full(reinterpret_cast<float*>(rows[threadIdx.x / kWarp]), terms);
    __syncthreads();
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      lane = __fadd_rn(lane, reinterpret_cast<const float*>(rows[w])[threadIdx.x]);
    }
  }
  return lane;
}

/// One block by eight warps, kRows groups of eight rows at a time.
template <bool kFull, unsigned kRows, typename Source>
__device__ __forceinline__ void code_large_block(const Source& source, unsigned count, Scale rule,
                                                 float* scale, std::uint32_t* words, Meeting& meeting) {
  constexpr unsigned kTile = kRows * kWarps;
  const unsigned rows = (count + kRow - 1) / kRow;
  const unsigned own_row = threadIdx.x / kWarp;
  float z[kRows][kHeld];
  float lane = 0;
  for (unsigned row = 0; row < rows; row += kTile) {
    source.template load<kRows, kWarps, kFull>(row + own_row, count, z);
    lane = add_groups(rule, z, lane, meeting);
  }
  reinterpret_cast<float*>(meeting.lanes)[threadIdx.x] = lane;
  __syncthreads();
  float lanes[kHeld];
  load_full(reinterpret_cast<const float*>(meeting.lanes), lanes);
  const float s = block_scale(rule, fold(lanes), count);
  if (threadIdx.x == 0) *scale = s;
  for (unsigned row = 0; row < rows; row += kTile) {
    if (rows > kTile) source.template load<kRows, kWarps, kFull>(row + own_row, count, z);
    quantize_rows<kRows, kWarps, kFull>(s, row + own_row, count, z, source.error, words);
  }
}

/// Units are blocks of a multiple of 8 kRows rows.
template <typename Source, unsigned kRows>
__global__ void __launch_bounds__(kThreads, kRows < 4 ? 2 : 1)
    code_large_blocks(const __grid_constant__ Batch<typename Source::Piece> batch, Scale rule,
                      typename Source::Options options) {
  __shared__ Meeting meeting;
  const std::uint32_t units = batch.first_unit[batch.count];
  unsigned from = 0;
  for (std::uint32_t number = blockIdx.x; number < units; number += gridDim.x) {
    const Unit unit = find_unit(batch, number, from);
    from = unit.piece;
    const auto& piece = batch.pieces[unit.piece];
    const Source source(piece, unit.first, options);
    float* const scale = Source::scales(piece) + unit.index;
    std::uint32_t* const words = Source::bits(piece) + unit.first / 32;
    if (unit.count == batch.unit_elements && source.aligned()) {
      code_large_block<true, kRows>(source, unit.count, rule, scale, words, meeting);
    } else {
      code_large_block<false, kRows>(source, unit.count, rule, scale, words, meeting);
    }
  }
}

}  // namespace onebit::codec::cuda

/// The kernels that code blocks of a source, named for the stand-in.
#define ONEBIT_CODE_KERNELS(...)                        \
  ONEBIT_CUDA_KERNEL(code_small_blocks<__VA_ARGS__, 1>) \
  ONEBIT_CUDA_KERNEL(code_small_blocks<__VA_ARGS__, 2>) \
  ONEBIT_CUDA_KERNEL(code_small_blocks<__VA_ARGS__, 4>) \
  ONEBIT_CUDA_KERNEL(code_small_blocks<__VA_ARGS__, 8>) \
  ONEBIT_CUDA_KERNEL(code_large_blocks<__VA_ARGS__, 2>) \
  ONEBIT_CUDA_KERNEL(code_large_blocks<__VA_ARGS__, 4>) \
  ONEBIT_CUDA_KERNEL(code_large_blocks<__VA_ARGS__, 8>)
