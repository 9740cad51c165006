// A communicator of NCCL's whose tagged allreduces and reduce-scatters run in 1 bit, on the caller's streams.
//
// A compressed allreduce is: encode, send and receive the pieces (one NCCL group), average, allgather,
// decode; chunk by chunk. A reduce-scatter ends with the average, in full precision. NCCL operations of
// several communicators that one thread drives have to be issued in one group, or they wait for each other;
// so calls that end together (an outer ncclGroupEnd) run phase by phase: `run` takes all of them. Small calls
// of one communicator that follow each other there are a batch: one launch a step, one message to each rank.
// Ranks cut batches alike: by shape, type, op and the staging memory that all have. Batches of a communicator
// run one after the other.
//
// The first call of a shape makes memory on every rank, and the ranks tell each other whether they have it;
// that waits for the stream, as NCCL's own first call does. After it nothing here waits or allocates but for
// a new tensor, or a larger batch. If one rank lacks memory, all send calls of that shape the exact way.
//
// A communicator is used by one thread at a time. No lock is held while NCCL is called.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/nccl/device_codec.h"
#include "collective/nccl/nccl_abi.h"
#include "collective/nccl/residual_slots.h"

namespace onebit::nccl {

struct CommunicatorOptions {
  Comm comm = nullptr;
  Functions nccl{};  ///< of the library that made `comm`
  int device = 0;
  std::size_t chunk = 0;       ///< elements, 0: automatic
  const char* peers = "rank";  ///< what messages call its ranks
  CodecOptions codec;          ///< with no stream: the memory's is the communicator's own
};

struct Statistics {
  std::uint64_t calls = 0;
  std::uint64_t batches = 0;
  std::uint64_t bytes = 0;           ///< of the buffers reduced
  std::uint64_t sent_bytes = 0;      ///< what NCCL was given to send, allgathers counted as W - 1 pieces
  std::uint64_t residual_bytes = 0;  ///< device memory now
  std::uint64_t resets = 0;          ///< residuals that were reset since their tensor may be another one
};

class NcclCommunicator;

/// An allreduce or reduce-scatter as the job called it.
struct Request {
  NcclCommunicator* communicator = nullptr;
  const void* send = nullptr;
  void* receive = nullptr;
  Shape shape = 0;
  DataType type{};
  ReduceOp op{};
  const char* tag = "";  ///< empty: the tensor is recognised by its buffer
  cudaStream_t stream = nullptr;
  /// Out. False: a rank has no memory for it; all ranks are to make it the exact way.
  bool compressed = false;
  /// The caller's own, of NcclCommunicator::reserve; null: by tag or buffer.
  const Residuals* residuals = nullptr;
};

class Levels;

/// Runs the requests in their order for each communicator. What fails is logged; the result is NCCL's.
Result run(std::span<Request> requests);

/// What a rank tells all others of a communicator, and what they tell.
struct Exchange {
  NcclCommunicator* communicator = nullptr;
  std::span<const std::uint64_t> mine;  ///< at most kExchanged numbers, equally many on all ranks
  cudaStream_t stream = nullptr;        ///< null: the communicator's own
  std::vector<std::uint64_t> all;       ///< out: rank after rank
};
constexpr std::size_t kExchanged = 32;
/// Gathers the numbers of all ranks; waits for the streams. Each of another communicator.
Result exchange(std::span<Exchange> exchanges);

class NcclCommunicator {
 public:
  /// Takes what exchanges need: a stream and a little memory.
  static onebit::Result<std::unique_ptr<NcclCommunicator>> create(const CommunicatorOptions& options);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator();

  Statistics statistics() const;
  /// Makes the memory for calls of a shape, and residuals of zeros that the caller keeps and gives to its
  /// calls. All ranks do so before the first one, and none asks the others then. Nothing when no memory is
  /// left. Waits for the communicator's own stream.
  std::optional<Residuals> reserve(Shape shape);
  /// Where `residuals` of this communicator has the errors of the elements of partition `owner`.
  float* worker_errors(const Residuals& residuals, Shape shape, std::size_t owner) const {
    return residuals.worker.as<float>() + layout(shape).error_begin(owner, 0);
  }
  /// Any thread: a call in progress ends before its next NCCL operation, since NCCL's communicator is about
  /// to go.
  void abort();
  unsigned ranks() const { return options_.codec.ranks; }
  const CommunicatorOptions& options() const { return options_; }
  /// Null without.
  const Levels* levels() const { return levels_.get(); }
  void set_levels(std::unique_ptr<Levels> levels);
  /// Ends NCCL's communicators that were made for it; before that one itself ends.
  void close();

 private:
  friend class Running;
  friend class Admission;
  friend Result exchange(std::span<Exchange> exchanges);

  NcclCommunicator(const CommunicatorOptions& options, cudaStream_t own_stream);

  Layout layout(Shape shape) const {
    return {shape, options_.codec.ranks, options_.codec.parameters, options_.chunk};
  }
  /// The requests of the first batch of several. Equal on all ranks.
  std::size_t first_batch(std::span<Request* const> requests, std::size_t most_staging) const;
  /// Orders `stream` behind what the last call put on its stream.
  cudaError_t enter(cudaStream_t stream);
  /// Orders `stream` behind what `other` has been given.
  cudaError_t join(cudaStream_t stream, cudaStream_t other);
  cudaError_t leave(cudaStream_t stream);

  const CommunicatorOptions options_;
  std::unique_ptr<Levels> levels_;
  /// For memory, and exchanges outside of calls; it follows the last call.
  const cudaStream_t own_stream_;
  DeviceCodec codec_;
  ResidualSlots slots_;
  DeviceMemory exchanged_;
  /// For each shape that has come: whether all ranks have memory for it.
  std::map<Shape, bool> admitted_;
  std::size_t staging_ = 0;        ///< bytes of a batch's messages that all ranks have memory for
  std::size_t staging_asked_ = 0;  ///< the most that they were asked for
  cudaEvent_t last_event_ = nullptr;
  cudaEvent_t join_event_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool has_last_ = false;
  std::atomic<bool> is_aborted_ = false;
  Statistics statistics_;
};

}  // namespace onebit::nccl
