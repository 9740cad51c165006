// The sum of a block and its scale: docs/format.md, sections 3 and 4, on a warp.
//
// Thread t's accumulator k is lane held_element(k) of the 256. Every operation rounds on its own (_rn), so
// nothing contracts. All threads of a warp call together and get the same bits.
#pragma once

#include "codec/cuda/row.cuh"
#include "codec/parameters.h"

namespace onebit::codec::cuda {

constexpr std::uint32_t kNan = 0x7fc00000;

__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000U) != 0x7f800000U;
}
__device__ __forceinline__ bool is_nan(float value) {
  return (__float_as_uint(value) & 0x7fffffffU) > 0x7f800000U;
}
/// `value`, where every NaN is the one that the codec writes.
__device__ __forceinline__ float canonical(float value) {
  return is_nan(value) ? __uint_as_float(kNan) : value;
}

/// lane + t, with t = z^2 or |z|.
__device__ __forceinline__ float add_term(Scale rule, float lane, float z) {
  return __fadd_rn(lane, rule == Scale::kRms ? __fmul_rn(z, z) : fabsf(z));
}

/// One step of a fold of 2 kHalf accumulators a thread with the thread at distance kDistance: both have the
/// same ones; the lower thread keeps the first half of the sums, the upper one the second.
template <unsigned kHalf, unsigned kDistance>
__device__ __forceinline__ void fold_and_share(float* lane) {
  const bool upper = (warp_thread() & kDistance) != 0;
#pragma unroll
  for (unsigned k = 0; k < kHalf; ++k) {
    const float kept = upper ? lane[k + kHalf] : lane[k];
    const float given = upper ? lane[k] : lane[k + kHalf];
    lane[k] = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, given, kDistance));
  }
}

/// Adds the 256 lanes in the order of the format. Lane l + half is, for half = 128, 64, 32, 16, in the thread
/// 16, 8, 4, 2 further; for 8 it is the second quad's, for 4 the next thread's, for 2 and 1 within the quad.
/// Threads share the work of the first three steps: after them each has one of eight sums left.
__device__ __forceinline__ float fold(float (&lane)[kHeld]) {
  fold_and_share<4, 16>(lane);
  fold_and_share<2, 8>(lane);
  fold_and_share<1, 4>(lane);
  float sum = lane[0];
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 16));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 8));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 4));
  return sum;
}

/// The scale of a block of n elements.
__device__ __forceinline__ float block_scale(Scale rule, float sum, unsigned n) {
  if (!is_finite(sum)) return __uint_as_float(kNan);
  const float mean = __fdiv_rn(sum, __uint2float_rn(n));
  return rule == Scale::kRms ? __fsqrt_rn(mean) : mean;
}

}  // namespace onebit::codec::cuda
