#include "cuda_cpu/test_kernels.h"

#include "cuda/launch.h"

namespace onebit::cuda_cpu {

template <typename T>
__global__ void line_kernel(T* __restrict__ data, int count, Line line) {
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += step) {
    data[i] = __fadd_rn(__fmul_rn(line.slope, data[i]), static_cast<T>(line.offset));
  }
}

__global__ void reverse_kernel(float* data) {
  ONEBIT_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = __ldg(data + threadIdx.x);
  __syncthreads();
  __stcs(data + threadIdx.x, shared[blockDim.x - 1 - threadIdx.x]);
}

namespace {

// In an unnamed namespace, where nvcc and g++ name it differently.
__global__ void __launch_bounds__(1024) sum_kernel(const float* data, float* out) {
  __shared__ float of_warp[32];
  float sum = data[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFU, sum, distance));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total = __fadd_rn(total, of_warp[warp]);
  *out = total;
}
__global__ void nothing_kernel() {}

}  // namespace

ONEBIT_CUDA_KERNEL(line_kernel<float>)
ONEBIT_CUDA_KERNEL(reverse_kernel)
ONEBIT_CUDA_KERNEL(sum_kernel)
ONEBIT_CUDA_KERNEL(nothing_kernel)

cudaError_t launch_line(float* data, int count, Line line, cudaStream_t stream) {
  return cu::launch(line_kernel<float>, dim3(3), dim3(64), 0, stream, data, count, line);
}
cudaError_t launch_reverse(float* data, int count, cudaStream_t stream) {
  const auto threads = static_cast<unsigned>(count);
  return cu::launch(reverse_kernel, dim3(1), dim3(threads), threads * sizeof(float), stream, data);
}
cudaError_t launch_sum(const float* data, int count, float* out, cudaStream_t stream) {
  return cu::launch(sum_kernel, dim3(1), dim3(static_cast<unsigned>(count)), 0, stream, data, out);
}
cudaError_t launch_nothing(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  return cu::launch(nothing_kernel, grid, block, shared_bytes, stream);
}
cudaError_t launch_nothing(const cudaLaunchConfig_t& config) {
  return cu::launch(nothing_kernel, config);
}
cudaError_t allow_shared_bytes(int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(nothing_kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace onebit::cuda_cpu
