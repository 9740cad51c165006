// Kernels of one thread that tell the host a number, or wait for one of it. Asynchronous; any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace onebit::nccl {

/// *word = number; what the stream wrote before is seen by the host that sees it.
cudaError_t launch_write(std::uint32_t* word, std::uint32_t number, cudaStream_t stream);
/// Ends when *word, a word of host memory, has reached `number`.
cudaError_t launch_wait(const std::uint32_t* word, std::uint32_t number, cudaStream_t stream);

}  // namespace onebit::nccl
