// A communicator of NCCL's whose tagged allreduces run in 1 bit, on the caller's streams.
//
// A compressed call is: encode, send and receive the pieces (one NCCL group), average, allgather, decode;
// chunk by chunk. NCCL operations of several communicators that one thread drives have to be issued in one
// group, or they wait for each other; so calls that end together (an outer ncclGroupEnd) run phase by phase:
// `run` takes all of them. Calls of one communicator run one after the other.
//
// The first call of a size makes memory on every rank, and the ranks tell each other whether they have it;
// that waits for the stream, as NCCL's own first call does. After it nothing here waits or allocates but for
// a new tensor. If one rank lacks memory, all send calls of that size the exact way.
//
// A communicator is used by one thread at a time. No lock is held while NCCL is called.
#pragma once

#include <atomic>
#include <map>
#include <memory>
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
  std::size_t chunk = 0;  ///< elements, 0: automatic
  CodecOptions codec;     ///< with no stream: the memory's is the communicator's own
};

struct Statistics {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;           ///< of the buffers reduced
  std::uint64_t sent_bytes = 0;      ///< what NCCL was given to send, allgathers counted as W - 1 pieces
  std::uint64_t residual_bytes = 0;  ///< device memory now
  std::uint64_t resets = 0;          ///< residuals that were reset since their tensor may be another one
};

class NcclCommunicator;

/// An allreduce as the job called it.
struct Request {
  NcclCommunicator* communicator = nullptr;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DataType type{};
  ReduceOp op{};
  const char* tag = "";  ///< empty: the tensor is recognised by its buffer
  cudaStream_t stream = nullptr;
  /// Out. False: a rank has no memory for it; all ranks are to make it the exact way.
  bool compressed = false;
};

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
/// Gathers the numbers of all ranks; waits for the streams.
Result exchange(std::span<Exchange> exchanges);

class NcclCommunicator {
 public:
  /// Takes what exchanges need: a stream and a little memory.
  static onebit::Result<std::unique_ptr<NcclCommunicator>> create(const CommunicatorOptions& options);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator();

  Statistics statistics() const;
  /// Any thread: a call in progress ends before its next NCCL operation, since NCCL's communicator is about
  /// to go.
  void abort() { is_aborted_.store(true); }
  unsigned ranks() const { return options_.codec.ranks; }

 private:
  friend class Running;
  friend Result exchange(std::span<Exchange> exchanges);

  NcclCommunicator(const CommunicatorOptions& options, cudaStream_t own_stream);

  Layout layout(std::size_t count) const {
    return {count, options_.codec.ranks, options_.codec.parameters, options_.chunk};
  }
  /// Orders `stream` behind what the last call put on its stream.
  cudaError_t enter(cudaStream_t stream);
  cudaError_t leave(cudaStream_t stream);

  const CommunicatorOptions options_;
  /// For memory, and exchanges outside of calls; it follows the last call.
  const cudaStream_t own_stream_;
  DeviceCodec codec_;
  ResidualSlots slots_;
  DeviceMemory exchanged_;
  /// For each count that has come: whether all ranks have memory for it.
  std::map<std::size_t, bool> admitted_;
  cudaEvent_t last_event_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool has_last_ = false;
  std::atomic<bool> is_aborted_ = false;
  Statistics statistics_;
};

}  // namespace onebit::nccl
