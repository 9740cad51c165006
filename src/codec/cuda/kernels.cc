// The launches of kernels.h by the tensor's type.
#include "codec/cuda/tensor_kernels.h"

namespace onebit::codec::cuda {

namespace {

/// Calls `launch` with the TensorKernels of `type`.
template <typename Launch>
cudaError_t with_kernels(DataType type, Launch launch) {
  switch (type) {
    case DataType::kFloat32:
      return launch(TensorKernels<DataType::kFloat32>());
    case DataType::kFloat16:
      return launch(TensorKernels<DataType::kFloat16>());
    case DataType::kBFloat16:
      return launch(TensorKernels<DataType::kBFloat16>());
    default:
      return cudaErrorInvalidValue;  // not a compressible type
  }
}

}  // namespace

cudaError_t encode(DataType type, ErrorType error, std::span<const EncodePiece> pieces, Parameters parameters,
                   cudaStream_t stream) {
  return with_kernels(type, [&](auto kernels) { return kernels.encode(error, pieces, parameters, stream); });
}

cudaError_t decode(DataType type, std::span<const DecodePiece> pieces, Parameters parameters,
                   cudaStream_t stream) {
  return with_kernels(type, [&](auto kernels) { return kernels.decode(pieces, parameters, stream); });
}

cudaError_t reduce(DataType type, std::span<const ReducePiece> pieces, unsigned ranks, float factor,
                   Parameters parameters, cudaStream_t stream) {
  return with_kernels(
      type, [&](auto kernels) { return kernels.reduce(pieces, ranks, factor, parameters, stream); });
}

cudaError_t sums(DataType type, ErrorType error, std::span<const EncodePiece> pieces, Scale scale,
                 cudaStream_t stream) {
  return with_kernels(type, [&](auto kernels) { return kernels.sums(error, pieces, scale, stream); });
}

cudaError_t quantize(DataType type, ErrorType error, std::span<const EncodePiece> pieces,
                     cudaStream_t stream) {
  return with_kernels(type, [&](auto kernels) { return kernels.quantize(error, pieces, stream); });
}

}  // namespace onebit::codec::cuda
