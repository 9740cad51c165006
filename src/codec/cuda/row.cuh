// A warp's view of a row of 256 elements: which thread holds what, and how it gets there and back.
//
// Thread t = 2s + h holds the quads (4 elements) 4s + h and 4s + h + 2 of a row: z[0..3] and z[4..7]. So a
// warp's access to 4-byte elements is two 16-byte ones a thread that fill whole sectors, and 2-byte elements
// come by one 16-byte access, of which neighbours swap halves. A thread's eight bits are in word t / 4 of the
// row's eight. Invariant: elements past the end read as +0 and are never written. All threads of a warp call
// together.
#pragma once

#include <cstdint>

#include "cuda/launch.h"

namespace onebit::codec::cuda {

constexpr unsigned kRow = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr unsigned kHeld = 8;  ///< elements of a row that a thread holds

__device__ __forceinline__ unsigned warp_thread() {
  return threadIdx.x % kWarp;
}
__device__ __forceinline__ unsigned row_word() {
  return warp_thread() / 4;
}
/// The first element of the thread's first quad in the row; that of the second is 8 further.
__device__ __forceinline__ unsigned first_quad() {
  return warp_thread() / 2 * 16 + warp_thread() % 2 * 4;
}
/// Where element k of those held is in the row.
__device__ __forceinline__ unsigned held_element(unsigned k) {
  return first_quad() + k % 4 + k / 4 * 8;
}
/// The bit of held element k in the thread's word.
__device__ __forceinline__ unsigned held_bit(unsigned k) {
  return warp_thread() % 4 / 2 * 16 + warp_thread() % 2 * 4 + k % 4 + k / 4 * 8;
}

// ---- elements ----

__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// Two 2-byte elements in a word, the first in its low half.
template <typename T>
struct Pair {
  T first, second;
};
template <typename T>
__device__ __forceinline__ void unpack(std::uint32_t word, float* z) {
  Pair<T> pair;
  static_assert(sizeof pair == sizeof word);
  memcpy(static_cast<void*>(&pair), &word, sizeof word);
  z[0] = widen(pair.first);
  z[1] = widen(pair.second);
}
template <typename T>
__device__ __forceinline__ std::uint32_t pack(const float* z) {
  const Pair<T> pair = {narrow<T>(z[0]), narrow<T>(z[1])};
  std::uint32_t word;
  memcpy(&word, static_cast<const void*>(&pair), sizeof word);
  return word;
}

/// Eight 2-byte elements that follow each other, to the quads that the thread holds, and back: even threads
/// swap their upper half for the lower one of the next thread.
__device__ __forceinline__ uint4 swap_halves(uint4 words) {
  const bool even = warp_thread() % 2 == 0;
  const std::uint32_t first = __shfl_xor_sync(kAllLanes, even ? words.z : words.x, 1);
  const std::uint32_t second = __shfl_xor_sync(kAllLanes, even ? words.w : words.y, 1);
  return even ? make_uint4(words.x, words.y, first, second) : make_uint4(first, second, words.z, words.w);
}

// ---- rows that are full and 16-byte aligned ----

__device__ __forceinline__ void load_full(const float* row, float (&z)[kHeld]) {
  const auto* quads = reinterpret_cast<const float4*>(row + first_quad());
  const float4 first = quads[0];
  const float4 second = quads[2];
  z[0] = first.x, z[1] = first.y, z[2] = first.z, z[3] = first.w;
  z[4] = second.x, z[5] = second.y, z[6] = second.z, z[7] = second.w;
}

template <typename T>
__device__ __forceinline__ void load_full(const T* row, float (&z)[kHeld]) {
  static_assert(sizeof(T) == 2);
  const uint4 words = swap_halves(*reinterpret_cast<const uint4*>(row + warp_thread() * kHeld));
  unpack<T>(words.x, z);
  unpack<T>(words.y, z + 2);
  unpack<T>(words.z, z + 4);
  unpack<T>(words.w, z + 6);
}

__device__ __forceinline__ void store_full(float* row, const float (&z)[kHeld]) {
  auto* quads = reinterpret_cast<float4*>(row + first_quad());
  quads[0] = make_float4(z[0], z[1], z[2], z[3]);
  quads[2] = make_float4(z[4], z[5], z[6], z[7]);
}

template <typename T>
__device__ __forceinline__ void store_full(T* row, const float (&z)[kHeld]) {
  static_assert(sizeof(T) == 2);
  const uint4 words = make_uint4(pack<T>(z), pack<T>(z + 2), pack<T>(z + 4), pack<T>(z + 6));
  *reinterpret_cast<uint4*>(row + warp_thread() * kHeld) = swap_halves(words);
}

// ---- rows of `count` elements (more than 256: a full one) at any alignment ----

template <typename T>
__device__ __forceinline__ void load_part(const T* row, unsigned count, float (&z)[kHeld]) {
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) {
    const unsigned element = held_element(k);
    z[k] = element < count ? widen(row[element]) : 0.0f;
  }
}

template <typename T>
__device__ __forceinline__ void store_part(T* row, unsigned count, const float (&z)[kHeld]) {
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) {
    const unsigned element = held_element(k);
    if (element < count) row[element] = narrow<T>(z[k]);
  }
}

/// The elements that a short block of `count` has from element `first` on.
__device__ __forceinline__ unsigned remaining(unsigned count, unsigned first) {
  return count > first ? count - first : 0;
}

}  // namespace onebit::codec::cuda
