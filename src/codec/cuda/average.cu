// The owner's kernels: average, and its two parts in `whole` mode.
#include "codec/cuda/batches.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/whole.cuh"

namespace onebit::codec::cuda {

/// The scale of n elements from the sums of their sub-blocks, by one block of threads: thread l adds lane l.
__global__ void __launch_bounds__(kThreads)
    whole_scale_kernel(const float* sums, std::size_t count, std::size_t n, Scale rule, ScaleCopies result) {
  __shared__ double lane[kThreads];
  double own = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads)
    own = __dadd_rn(own, static_cast<double>(sums[i]));
  lane[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half >= 1; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) lane[threadIdx.x] = __dadd_rn(lane[threadIdx.x], lane[threadIdx.x + half]);
  }
  __syncthreads();
  const double mean = __ddiv_rn(lane[0], __ull2double_rn(n));
  const float found = __double2float_rn(rule == Scale::kRms ? __dsqrt_rn(mean) : mean);
  const float scale = n == 0 ? 0.0f : is_finite(found) ? found : __uint_as_float(kNan);
  for (unsigned copy = threadIdx.x; copy < result.copies; copy += kThreads) {
    *reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(result.first) + copy * result.stride) = scale;
  }
}

cudaError_t average(ErrorType error, std::span<const AveragePiece> pieces, unsigned ranks, float factor,
                    Parameters parameters, cudaStream_t stream) {
  const AverageOptions options = {ranks, factor, parameters.block};
  if (error == ErrorType::kFloat32) return code<Averaged<float>>(pieces, parameters, options, stream);
  return code<Averaged<__nv_bfloat16>>(pieces, parameters, options, stream);
}

cudaError_t accumulate(ErrorType error, std::span<const AveragePiece> pieces, unsigned ranks, float factor,
                       Scale scale, cudaStream_t stream) {
  const AverageOptions options = {ranks, factor, kWhole};
  if (error == ErrorType::kFloat32) return sum<Averaged<float>>(pieces, scale, options, stream);
  return sum<Averaged<__nv_bfloat16>>(pieces, scale, options, stream);
}

cudaError_t whole_scale(const float* sums, std::size_t count, std::size_t n, Scale scale, ScaleCopies result,
                        cudaStream_t stream) {
  return cu::launch(whole_scale_kernel, dim3(1), dim3(kThreads), 0, stream, sums, count, n, scale, result);
}

ONEBIT_CODE_KERNELS(Averaged<float>)
ONEBIT_CODE_KERNELS(Averaged<__nv_bfloat16>)
ONEBIT_CUDA_KERNEL(sum_sub_blocks<Averaged<float>>)
ONEBIT_CUDA_KERNEL(sum_sub_blocks<Averaged<__nv_bfloat16>>)
ONEBIT_CUDA_KERNEL(whole_scale_kernel)

}  // namespace onebit::codec::cuda
