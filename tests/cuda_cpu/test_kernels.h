// The kernels of the stand-in's own tests, as host code launches them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace onebit::cuda_cpu {

struct Line {
  float slope;
  double offset;
  char label;
};

/// data[i] = slope * data[i] + offset for i < count, each block its share.
cudaError_t launch_line(float* data, int count, Line line, cudaStream_t stream);
/// Reverses `count` <= 1024 floats in dynamic shared memory.
cudaError_t launch_reverse(float* data, int count, cudaStream_t stream);
/// out[0] = the sum of `count` <= 1024 floats, a power of two, in a fixed order.
cudaError_t launch_sum(const float* data, int count, float* out, cudaStream_t stream);
/// One launch with what is given, for those that must be refused.
cudaError_t launch_nothing(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream);
/// The same through cudaLaunchKernelExC.
cudaError_t launch_nothing(const cudaLaunchConfig_t& config);
/// What launch_nothing may have of dynamic shared memory from now on.
cudaError_t allow_shared_bytes(int bytes);

}  // namespace onebit::cuda_cpu
