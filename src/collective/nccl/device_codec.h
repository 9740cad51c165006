// The CUDA codec on a stream: what one rank computes of a compressed allreduce, in device memory.
//
// Every function puts work on the call's stream and returns; none waits for the device or allocates, but
// `reserve` and `make_residuals`, which a tensor's first call makes. The staging memory is one call's at a
// time: calls follow each other on one stream, or the caller orders their streams. One thread at a time; the
// communicator's device must be current.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "codec/cuda/kernels.h"
#include "collective/nccl/device_memory.h"
#include "collective/nccl/layout.h"

namespace onebit::nccl {

/// The worker errors of a tensor on this rank, and the owner errors of its partition.
struct Residuals {
  DeviceMemory worker;
  DeviceMemory owner;

  std::size_t bytes() const { return worker.bytes() + owner.bytes(); }
  /// Forgets them, in the order of `stream`.
  cudaError_t reset(cudaStream_t stream) const;
};

/// One allreduce of one communicator.
struct Call {
  Layout layout;
  const void* send;
  void* receive;  ///< may be `send`
  DataType type;
  ReduceOp op;
  const Residuals* residuals;
  cudaStream_t stream;
};

struct CodecOptions {
  codec::Parameters parameters;
  codec::cuda::ErrorType error = codec::cuda::ErrorType::kFloat32;
  unsigned ranks = 1;
  unsigned rank = 0;
  MemorySource memory;
};

class DeviceCodec {
 public:
  explicit DeviceCodec(CodecOptions options) : options_(options) {}

  /// Makes the staging memory large enough for calls of this layout; waits for the device when it must grow.
  /// False: no memory is left, and calls that had enough still have.
  bool reserve(const Layout& layout);
  /// Gives the staging memory back.
  void release();
  /// Residuals of zeros; waits for the memory's stream. Nothing when no memory is left.
  std::optional<Residuals> make_residuals(const Layout& layout) const;

  /// Codes chunk `chunk` of every partition. This rank's own goes where the others' come in.
  cudaError_t encode(const Call& call, std::size_t chunk);
  /// Averages what has come in for this rank's partition and codes the average.
  cudaError_t average(const Call& call, std::size_t chunk);
  /// Decodes all partitions' averages.
  cudaError_t decode(const Call& call, std::size_t chunk);

  /// What goes to the owner of partition `peer`, and what comes from rank `peer` for this rank's. Empty
  /// messages are not sent.
  std::span<std::byte> outgoing(const Call& call, std::size_t chunk, unsigned peer) const;
  std::span<std::byte> incoming(const Call& call, std::size_t chunk, unsigned peer) const;
  /// Where the averages are gathered: the layout's stride of bytes of each rank, this rank's in its place.
  std::byte* gathered() const { return outgoing_.data(); }

 private:
  struct Message;
  Message message(std::byte* at, std::size_t n) const;
  std::size_t elements(const Call& call, std::size_t chunk, std::size_t owner) const {
    return call.layout.plan().chunk(owner, chunk).length;
  }
  /// The messages about each partition's chunk, as the kernels take them.
  std::span<const codec::cuda::EncodePiece> encode_pieces(const Call& call, std::size_t chunk);
  cudaError_t encode_whole(const Call& call);
  cudaError_t average_whole(const Call& call, codec::cuda::AveragePiece piece);

  const CodecOptions options_;
  DeviceMemory outgoing_;  ///< also where the averages are gathered
  DeviceMemory incoming_;
  DeviceMemory sums_;      ///< of `whole` mode
  DeviceMemory averaged_;  ///< of `whole` mode
  std::vector<codec::cuda::EncodePiece> encode_pieces_;
  std::vector<codec::cuda::DecodePiece> decode_pieces_;
};

}  // namespace onebit::nccl
