// How CUDA sources declare and launch kernels, the same for the two compilers that see them: nvcc for GPUs,
// and the C++ compiler for machines without one (tests/cuda_cpu, where ONEBIT_CUDA_CPU is defined).
//
// What C++ cannot spell goes through macros: ONEBIT_DYNAMIC_SHARED for `extern __shared__`, cu::launch for
// `<<<>>>`. ONEBIT_CUDA_KERNEL, once for each kernel instance at namespace scope, lets a program built by
// nvcc run on the stand-in. Threads: launches as cudaLaunchKernel's.
#pragma once

#if !defined(__CUDACC__) && !defined(ONEBIT_CUDA_CPU)
#error "CUDA sources are compiled by nvcc, or by onebit_add_cuda_cpu_kernels of CMake"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#if defined(__CUDACC__)
/// Declares `name`, a `T*` to the block's dynamic shared memory (16-byte aligned; its size is the launch's).
#define ONEBIT_DYNAMIC_SHARED(T, name)                                          \
  extern __shared__ __align__(16) unsigned char onebit_dynamic_shared_memory[]; \
  T* const name = reinterpret_cast<T*>(onebit_dynamic_shared_memory)
/// Names a kernel instance for the stand-in; nothing on a GPU.
#define ONEBIT_CUDA_KERNEL(...)
#else
#include "cuda_cpu/device.h"
#endif

namespace onebit::cu {

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), with the arguments converted to the kernel's
/// types. `shared_bytes`: dynamic shared memory of a block. Errors: those of cudaLaunchKernel.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "the kernel takes another number of arguments");
#if defined(ONEBIT_CUDA_CPU)
  cuda_cpu::register_kernel(kernel);
#endif
  return [&](Parameters... values) {
    void* addresses[sizeof...(Parameters) + 1] = {const_cast<void*>(static_cast<const void*>(&values))...};
    return ::cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses, shared_bytes,
                              stream);
  }(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

/// The same through cudaLaunchKernelExC, for launches with attributes.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const cudaLaunchConfig_t& config,
                   Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "the kernel takes another number of arguments");
#if defined(ONEBIT_CUDA_CPU)
  cuda_cpu::register_kernel(kernel);
#endif
  return [&](Parameters... values) {
    void* addresses[sizeof...(Parameters) + 1] = {const_cast<void*>(static_cast<const void*>(&values))...};
    return ::cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), addresses);
  }(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

}  // namespace onebit::cu
