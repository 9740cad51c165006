// A kernel's view of its thread, warp and block: indices, barriers, votes, shuffles, shared memory.
//
// A warp operation returns when all lanes of its mask that have not returned from the kernel have come to it;
// a barrier, when all such threads of the block have. What cannot complete ends the program with a list of
// who waits where. Only __syncwarp and __syncthreads order memory, as on a GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

// Shared memory: all fibers of a block run on one thread of the system. A plain static has redzones under the
// address sanitizer, but then only one block may run at a time (CUDA_CPU_SERIAL_BLOCKS=1).
#undef __shared__
#ifdef ONEBIT_CUDA_CPU_STATIC_SHARED
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

/// See cuda/launch.h. The engine allocates it at the launch's exact size and fills it with NaN for each
/// block.
#define ONEBIT_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(onebit_cuda_cpu_dynamic_shared())

namespace onebit::cuda_cpu {

enum class WarpOperation : std::uint32_t {
  kSync,
  kBallot,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kMatchAny,
  kReduceAdd,
  kReduceMin,
  kReduceMax,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
};
enum class Barrier : std::uint32_t { kPlain, kCount, kAnd, kOr };

}  // namespace onebit::cuda_cpu

extern "C" {
/// Blocks until the lanes of `mask` have come. `value`: what this lane gives; `argument`: a lane, distance or
/// mask of a shuffle; `width`: lanes of a shuffle's segment.
std::uint64_t onebit_cuda_cpu_warp(onebit::cuda_cpu::WarpOperation operation, std::uint32_t mask,
                                   std::uint64_t value, std::uint32_t argument, std::uint32_t width);
/// Blocks until all threads of the block have come; the result of the variant.
int onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier kind, int predicate);
std::uint32_t onebit_cuda_cpu_active_mask();
void* onebit_cuda_cpu_dynamic_shared();

// Variables, not macros: cudaLaunchConfig_t has members of these names, and a debugger can show them.
extern __thread uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern __thread uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern __thread dim3 blockDim __attribute__((tls_model("initial-exec")));
extern __thread dim3 gridDim __attribute__((tls_model("initial-exec")));
}

constexpr int warpSize = 32;

inline void __syncthreads() {
  onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier::kPlain, 0);
}
inline int __syncthreads_count(int predicate) {
  return onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier::kCount, predicate);
}
inline int __syncthreads_and(int predicate) {
  return onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier::kAnd, predicate);
}
inline int __syncthreads_or(int predicate) {
  return onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier::kOr, predicate);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  onebit_cuda_cpu_warp(onebit::cuda_cpu::WarpOperation::kSync, mask, 0, 0, warpSize);
}
/// The weakest answer that the model allows: this lane alone.
inline unsigned __activemask() {
  return onebit_cuda_cpu_active_mask();
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const std::uint64_t vote = predicate != 0;
  return static_cast<unsigned>(
      onebit_cuda_cpu_warp(onebit::cuda_cpu::WarpOperation::kBallot, mask, vote, 0, warpSize));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}

namespace onebit::cuda_cpu {

template <typename T>
std::uint64_t to_word(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, static_cast<const void*>(&value), sizeof(T));
  return word;
}
template <typename T>
T shuffle(WarpOperation operation, unsigned mask, T value, int argument, int width) {
  const std::uint64_t word = onebit_cuda_cpu_warp(
      operation, mask, to_word(value), static_cast<unsigned>(argument), static_cast<unsigned>(width));
  T result;
  std::memcpy(static_cast<void*>(&result), &word, sizeof(T));
  return result;
}
inline unsigned reduce(WarpOperation operation, unsigned mask, unsigned value) {
  return static_cast<unsigned>(onebit_cuda_cpu_warp(operation, mask, value, 0, warpSize));
}

}  // namespace onebit::cuda_cpu

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize) {
  return onebit::cuda_cpu::shuffle(onebit::cuda_cpu::WarpOperation::kShuffle, mask, value, lane, width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = warpSize) {
  return onebit::cuda_cpu::shuffle(onebit::cuda_cpu::WarpOperation::kShuffleUp, mask, value,
                                   static_cast<int>(distance), width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = warpSize) {
  return onebit::cuda_cpu::shuffle(onebit::cuda_cpu::WarpOperation::kShuffleDown, mask, value,
                                   static_cast<int>(distance), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  return onebit::cuda_cpu::shuffle(onebit::cuda_cpu::WarpOperation::kShuffleXor, mask, value, lane_mask,
                                   width);
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(onebit_cuda_cpu_warp(onebit::cuda_cpu::WarpOperation::kMatchAny, mask,
                                                    onebit::cuda_cpu::to_word(value), 0, warpSize));
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceAdd, mask, value);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceMin, mask, value);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceMax, mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceAnd, mask, value);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceOr, mask, value);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return onebit::cuda_cpu::reduce(onebit::cuda_cpu::WarpOperation::kReduceXor, mask, value);
}
