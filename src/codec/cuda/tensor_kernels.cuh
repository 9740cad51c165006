// The definitions of TensorKernels, instantiated in one CUDA source a type. Any thread.
#pragma once

#include "codec/cuda/batches.cuh"
#include "codec/cuda/decode.cuh"
#include "codec/cuda/reduce.cuh"
#include "codec/cuda/tensor_kernels.h"
#include "codec/cuda/whole.cuh"

namespace onebit::codec::cuda {

template <DataType kType>
struct ElementOf;
template <>
struct ElementOf<DataType::kFloat32> {
  using Type = float;
};
template <>
struct ElementOf<DataType::kFloat16> {
  using Type = __half;
};
template <>
struct ElementOf<DataType::kBFloat16> {
  using Type = __nv_bfloat16;
};

template <DataType kType>
cudaError_t TensorKernels<kType>::encode(ErrorType error, std::span<const EncodePiece> pieces,
                                         Parameters parameters, cudaStream_t stream) {
  using X = typename ElementOf<kType>::Type;
  if (error == ErrorType::kFloat32) return code<Compensated<X, float>>(pieces, parameters, {}, stream);
  return code<Compensated<X, __nv_bfloat16>>(pieces, parameters, {}, stream);
}

template <DataType kType>
cudaError_t TensorKernels<kType>::decode(std::span<const DecodePiece> pieces, Parameters parameters,
                                         cudaStream_t stream) {
  constexpr auto kKernel = decode_tiles<typename ElementOf<kType>::Type>;
  return for_batches<kKernel>(pieces, kDecodeTile, kWarps, [&](const auto& batch, dim3 grid) {
    return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch, parameters.block);
  });
}

template <DataType kType>
cudaError_t TensorKernels<kType>::reduce(std::span<const ReducePiece> pieces, unsigned ranks, float factor,
                                         Parameters parameters, cudaStream_t stream) {
  using Y = typename ElementOf<kType>::Type;
  const AverageOptions options = {ranks, factor, parameters.block};
  const auto launch = [&]<unsigned kRows>() {
    constexpr auto kKernel = reduce_rows<Y, kRows>;
    return for_batches<kKernel>(pieces, kRows * kRow, kWarps, [&](const auto& batch, dim3 grid) {
      return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch, options);
    });
  };
  switch (parameters.block) {
    case 256:
      return launch.template operator()<1>();
    case 512:
      return launch.template operator()<2>();
    case 1024:
      return launch.template operator()<4>();
    default:
      return launch.template operator()<8>();
  }
}

template <DataType kType>
cudaError_t TensorKernels<kType>::sums(ErrorType error, std::span<const EncodePiece> pieces, Scale scale,
                                       cudaStream_t stream) {
  using X = typename ElementOf<kType>::Type;
  if (error == ErrorType::kFloat32) return sum<Compensated<X, float>>(pieces, scale, {}, stream);
  return sum<Compensated<X, __nv_bfloat16>>(pieces, scale, {}, stream);
}

template <auto kKernel>
cudaError_t quantize_with(std::span<const EncodePiece> pieces, cudaStream_t stream) {
  return for_batches<kKernel>(pieces, kQuantizeTile, kWarps, [&](const auto& batch, dim3 grid) {
    return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch);
  });
}

template <DataType kType>
cudaError_t TensorKernels<kType>::quantize(ErrorType error, std::span<const EncodePiece> pieces,
                                           cudaStream_t stream) {
  using X = typename ElementOf<kType>::Type;
  if (error == ErrorType::kFloat32) return quantize_with<quantize_tiles<X, float>>(pieces, stream);
  return quantize_with<quantize_tiles<X, __nv_bfloat16>>(pieces, stream);
}

}  // namespace onebit::codec::cuda

/// All kernels for tensors of a type, named for the stand-in.
#define ONEBIT_TENSOR_KERNELS(X)                                    \
  ONEBIT_CODE_KERNELS(Compensated<X, float>)                        \
  ONEBIT_CODE_KERNELS(Compensated<X, __nv_bfloat16>)                \
  ONEBIT_CUDA_KERNEL(sum_sub_blocks<Compensated<X, float>>)         \
  ONEBIT_CUDA_KERNEL(sum_sub_blocks<Compensated<X, __nv_bfloat16>>) \
  ONEBIT_REDUCE_KERNELS(X)                                          \
  ONEBIT_CUDA_KERNEL(quantize_tiles<X, float>)                      \
  ONEBIT_CUDA_KERNEL(quantize_tiles<X, __nv_bfloat16>)              \
  ONEBIT_CUDA_KERNEL(decode_tiles<X>)
