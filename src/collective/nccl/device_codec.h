// The CUDA codec on a stream: what one rank computes of compressed calls, in device memory.
//
// Calls that run together are a batch: what they have for a rank lies in one message, and each step is one
// launch for all of them. Every function puts work on the calls' stream and returns; none waits for the
// device or allocates, but `reserve` and `make_residuals`, which a tensor's first call makes. The staging
// memory is one batch's at a time: batches follow each other on one stream, or the caller orders their
// streams. One thread at a time; the communicator's device must be current.
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
};

/// One allreduce or reduce-scatter of one communicator.
struct Call {
  Layout layout;
  const void* send;
  void* receive;  ///< may be `send`, or its part that is this rank's
  DataType type;
  ReduceOp op;
  const Residuals* residuals;
  bool starts_anew;  ///< the residuals are reset before the call uses them
  cudaStream_t stream;
};
/// Calls that run together: of one type, op, kind and stream; with one chunk each, unless there is only one
/// call.
using Calls = std::span<const Call>;

struct CodecOptions {
  codec::Parameters parameters;
  codec::cuda::ErrorType error = codec::cuda::ErrorType::kFloat32;
  unsigned ranks = 1;
  unsigned rank = 0;
  MemorySource memory;
};

class DeviceCodec {
 public:
  /// Chunks whose messages have a place each.
  static constexpr std::size_t kSets = kChunksUnderWay;

  explicit DeviceCodec(CodecOptions options) : options_(options) {}
  unsigned rank() const { return options_.rank; }

  /// Makes the memory large enough for calls of this layout; waits for the device when it must grow. False:
  /// no memory is left, and calls that had enough still have.
  bool reserve(const Layout& layout);
  /// The same for batches with `staging` bytes of messages.
  bool reserve(std::size_t staging);
  /// Gives the staging memory back.
  void release();
  /// Residuals of zeros; waits for the memory's stream. Nothing when no memory is left.
  std::optional<Residuals> make_residuals(const Layout& layout) const;

  /// Codes chunk `chunk` of every partition. This rank's own goes where the others' come in.
  cudaError_t encode(Calls calls, std::size_t chunk);
  /// Averages what has come in for this rank's partition and codes the average.
  cudaError_t average(Calls calls, std::size_t chunk);
  /// Decodes all partitions' averages.
  cudaError_t decode(Calls calls, std::size_t chunk);
  /// For calls that scatter, instead of the two: writes the average of what has come in to the receive
  /// buffers.
  cudaError_t reduce(Calls calls, std::size_t chunk);

  /// What goes to the owner of partition `peer`, and what comes from rank `peer` for this rank's. Empty
  /// messages are not sent.
  std::span<std::byte> outgoing(Calls calls, std::size_t chunk, unsigned peer) const;
  std::span<std::byte> incoming(Calls calls, std::size_t chunk, unsigned peer) const;
  /// The average of partition `owner`: this rank's goes to all, the others' come in.
  std::span<std::byte> averaged(Calls calls, std::size_t chunk, unsigned owner) const;
  /// Bytes from one rank's messages, or averages, to the next one's.
  static std::size_t stride(Calls calls, std::size_t chunk);
  /// What all these are parts of.
  std::span<std::byte> staging() const { return {staging_.data(), staging_.bytes()}; }

 private:
  struct Message;
  /// The kinds of messages in staging memory, for each of its sets: those of all ranks, one after the other.
  enum class Kind : std::uint8_t { kOutgoing, kIncoming, kAveraged };
  std::byte* messages(Calls calls, std::size_t chunk, Kind kind) const;
  /// Where the piece about partition `owner` is coded: this rank's own comes in without a journey.
  std::byte* piece_base(Calls calls, std::size_t chunk, unsigned owner) const {
    return messages(calls, chunk, owner == options_.rank ? Kind::kIncoming : Kind::kOutgoing);
  }
  Message message(std::byte* at, std::size_t n) const;
  /// Bytes of the message of a batch about the partition of `owner`.
  std::size_t bytes_about(Calls calls, std::size_t chunk, std::size_t owner) const;
  /// What a call's launch waits for: nothing that the launch before it uses is used or reset.
  template <typename Flush>
  cudaError_t prepare(const Call& call, std::size_t chunk, DeviceMemory Residuals::*part, Flush flush);
  /// Adds the messages about each partition's chunk as the kernels take them; the call's are `offset` bytes
  /// into those of its batch.
  void add_encode_pieces(Calls calls, const Call& call, std::size_t chunk, std::size_t offset);
  codec::cuda::AveragePiece average_piece(Calls calls, const Call& call, std::size_t chunk,
                                          std::size_t offset) const;
  cudaError_t encode_whole(const Call& call);
  cudaError_t average_whole(const Call& call);

  const CodecOptions options_;
  DeviceMemory staging_;
  DeviceMemory sums_;                        ///< of `whole` mode
  DeviceMemory averaged_;                    ///< of `whole` mode
  std::vector<const Residuals*> in_launch_;  ///< of the pieces gathered so far
  std::vector<codec::cuda::EncodePiece> encode_pieces_;
  std::vector<codec::cuda::AveragePiece> average_pieces_;
  std::vector<codec::cuda::ReducePiece> reduce_pieces_;
  std::vector<codec::cuda::DecodePiece> decode_pieces_;
};

}  // namespace onebit::nccl
