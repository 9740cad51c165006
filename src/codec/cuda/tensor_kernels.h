// The launches whose kernels read or write tensors of one type: declared for whoever chooses by the type,
// compiled in one CUDA source a type. Any thread.
#pragma once

#include "codec/cuda/kernels.h"

namespace onebit::codec::cuda {

template <DataType kType>
struct TensorKernels {
  static cudaError_t encode(ErrorType error, std::span<const EncodePiece> pieces, Parameters parameters,
                            cudaStream_t stream);
  static cudaError_t decode(std::span<const DecodePiece> pieces, Parameters parameters, cudaStream_t stream);
  static cudaError_t reduce(std::span<const ReducePiece> pieces, unsigned ranks, float factor,
                            Parameters parameters, cudaStream_t stream);
  static cudaError_t sums(ErrorType error, std::span<const EncodePiece> pieces, Scale scale,
                          cudaStream_t stream);
  static cudaError_t quantize(ErrorType error, std::span<const EncodePiece> pieces, cudaStream_t stream);
};

}  // namespace onebit::codec::cuda
