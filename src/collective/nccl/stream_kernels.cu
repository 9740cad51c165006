#include "collective/nccl/stream_kernels.h"

#include "cuda/launch.h"

namespace onebit::nccl {
namespace {

constexpr unsigned kPauseNanoseconds = 1000;

/// What this thread wrote before is seen by a thread of the host that sees the number.
__device__ void release(std::uint32_t* word, std::uint32_t number) {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(number) : "memory");
#else
  __atomic_store_n(word, number, __ATOMIC_RELEASE);
#endif
}
__device__ std::uint32_t acquire(const std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  std::uint32_t seen;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
  return seen;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

}  // namespace

__global__ void write_word(std::uint32_t* word, std::uint32_t number) {
  release(word, number);
}

__global__ void wait_for_word(const std::uint32_t* word, std::uint32_t number) {
  while (static_cast<std::int32_t>(acquire(word) - number) < 0) __nanosleep(kPauseNanoseconds);
}

ONEBIT_CUDA_KERNEL(write_word)
ONEBIT_CUDA_KERNEL(wait_for_word)

cudaError_t launch_write(std::uint32_t* word, std::uint32_t number, cudaStream_t stream) {
  return cu::launch(write_word, dim3(1), dim3(1), 0, stream, word, number);
}

cudaError_t launch_wait(const std::uint32_t* word, std::uint32_t number, cudaStream_t stream) {
  return cu::launch(wait_for_word, dim3(1), dim3(1), 0, stream, word, number);
}

}  // namespace onebit::nccl
