// The CUDA kernels of the codec, as launches on a stream: the same bits as the CPU's (docs/format.md).
//
// A call checks nothing that its caller promises (pieces.h), allocates nothing and waits for nothing: it puts
// one launch for up to kMaxPieces pieces on `stream`, of the current device. Errors are cudaLaunchKernel's.
// Pieces of no elements are skipped. Any thread.
#pragma once

#include <driver_types.h>

#include <span>

#include "base/types.h"
#include "codec/cuda/pieces.h"
#include "codec/parameters.h"

namespace onebit::codec::cuda {

/// How errors are kept: fp32 as the format has it, or rounded to bf16 (half the memory, other bits).
enum class ErrorType : std::uint8_t { kFloat32, kBFloat16 };

/// Block mode: reads x and the errors of every piece, writes scales, bits and new errors.
cudaError_t encode(DataType type, ErrorType error, std::span<const EncodePiece> pieces, Parameters parameters,
                   cudaStream_t stream);
/// Block mode, the owner's pass over the pieces of `ranks` ranks (at least 1).
cudaError_t average(ErrorType error, std::span<const AveragePiece> pieces, unsigned ranks, float factor,
                    Parameters parameters, cudaStream_t stream);
/// Block mode and `whole`: the owner's pass of a reduce-scatter over the pieces of `ranks` ranks (at least
/// 1). Writes their sum times `factor` as y, in elements of `type`.
cudaError_t reduce(DataType type, std::span<const ReducePiece> pieces, unsigned ranks, float factor,
                   Parameters parameters, cudaStream_t stream);
/// Block mode and `whole`: writes y.
cudaError_t decode(DataType type, std::span<const DecodePiece> pieces, Parameters parameters,
                   cudaStream_t stream);

/// `whole` mode: the sums of the sub-blocks of z = x + error, to `scales`.
cudaError_t sums(DataType type, ErrorType error, std::span<const EncodePiece> pieces, Scale scale,
                 cudaStream_t stream);
/// `copies` floats, `stride` bytes apart.
struct ScaleCopies {
  float* first;
  unsigned copies;
  std::size_t stride;
};
/// Writes the scale of n elements in all from the `count` sums of their sub-blocks.
cudaError_t whole_scale(const float* sums, std::size_t count, std::size_t n, Scale scale, ScaleCopies result,
                        cudaStream_t stream);
/// Codes z = x + error with the scale that `scales` points at.
cudaError_t quantize(DataType type, ErrorType error, std::span<const EncodePiece> pieces,
                     cudaStream_t stream);
/// Writes the averages, and the sums of the sub-blocks of average + error to `new_scales`.
cudaError_t accumulate(ErrorType error, std::span<const AveragePiece> pieces, unsigned ranks, float factor,
                       Scale scale, cudaStream_t stream);

}  // namespace onebit::codec::cuda
