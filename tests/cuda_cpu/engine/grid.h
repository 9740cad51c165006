// Runs one grid of a kernel on the CPU: block after block, a fiber for each CUDA thread.
//
// Blocks run to their end one after the other (dealt in turn to EngineOptions::workers threads), so one that
// waits for another hangs. Returns when all have ended. Any thread; several may run grids at once.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda_cpu/device/kernel.h"
#include "cuda_cpu/engine/options.h"

namespace onebit::cuda_cpu {

struct Grid {
  const KernelSignature* signature;
  const void* kernel;
  void* const* arguments;
  dim3 blocks;
  dim3 threads;              ///< of a block; 1 to kMaxThreads in all
  std::size_t shared_bytes;  ///< dynamic shared memory of a block
  const char* name;          ///< for messages
};
constexpr unsigned kMaxThreads = 1024;

void run_grid(const Grid& grid, const EngineOptions& options = engine_options());

}  // namespace onebit::cuda_cpu
