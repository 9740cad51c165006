// A Runner whose passes run on a CUDA device, through libonebit-cuda.so's table of functions.
//
// Invariant: after the first CUDA error, which `fetch` returns, nothing more is run. Threads: as Runner's;
// the device is the one that was current when it was made.
#pragma once

#include <memory>

#include "cuda/library.h"
#include "optimizer/runner.h"

namespace onebit::optimizer {

/// Over a stream, on which the caller has what the passes read in order. All pointers of jobs are device
/// memory.
Result<std::unique_ptr<Runner>> make_device_runner(const onebit::cuda::Library& library,
                                                   std::span<const std::size_t> counts, cudaStream_t stream);

}  // namespace onebit::optimizer
