// A program that nvcc builds, for a GPU, and that runs on the stand-ins with the kernels of a library which
// g++ has built from the same files: it shows that what is shipped registers its kernels and launches them.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "cuda/launch.h"
#include "cuda_cpu/test_kernels.h"

namespace onebit::cuda_cpu {

__global__ void triple_kernel(float* data) {
  __shared__ float shared[64];
  shared[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = __fmul_rn(3.0F, shared[threadIdx.x ^ 1U]);
}
ONEBIT_CUDA_KERNEL(triple_kernel)

}  // namespace onebit::cuda_cpu

#ifdef __CUDACC__
int main() {
  using namespace onebit::cuda_cpu;
  constexpr int kCount = 64;
  const std::vector<float> ones(kCount, 1.0F);
  float* data = nullptr;
  float* sum = nullptr;
  float result = 0;
  cudaMalloc(&data, kCount * sizeof(float));
  cudaMalloc(&sum, sizeof(float));
  cudaMemcpy(data, ones.data(), kCount * sizeof(float), cudaMemcpyHostToDevice);
  launch_line(data, kCount, {2.0F, 1.0, 'x'}, nullptr);  // 3
  triple_kernel<<<1, kCount>>>(data);                    // 9
  launch_reverse(data, kCount, nullptr);
  launch_sum(data, kCount, sum, nullptr);
  cudaMemcpy(&result, sum, sizeof(float), cudaMemcpyDeviceToHost);
  const cudaError_t error = cudaGetLastError();
  std::printf("%g, %s\n", static_cast<double>(result), cudaGetErrorName(error));
  return result == 576.0F && error == cudaSuccess ? 0 : 1;
}
#endif
