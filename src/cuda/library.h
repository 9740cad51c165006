// The one door of libonebit-cuda.so: a table of functions, found by its name with dlsym. Plain data goes
// through it, no exceptions do. Whoever opens it is built from the same tree; the version tells when not.
//
// Threads: as NcclCommunicator's; the optimizers' part as DeviceSide's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/nccl/nccl_abi.h"

namespace onebit::nccl {
class NcclCommunicator;
}

namespace onebit::optimizer::cuda {
struct SideTable;
}

namespace onebit::cuda {

constexpr int kLibraryVersion = 6;
constexpr const char* kLibrarySymbol = "onebit_cuda_library";

struct CommunicatorSettings {
  nccl::Comm comm;
  nccl::Functions nccl;
  int device;
  unsigned ranks, rank;
  std::uint32_t block;  ///< 0: whole
  bool scale_is_mean;
  bool errors_are_bfloat16;
  std::size_t chunk;  ///< elements, 0: automatic
};

struct CommunicatorStatistics {
  std::uint64_t calls, batches, bytes, sent_bytes, residual_bytes, resets;
};

/// An allreduce or reduce-scatter as the job called it; see nccl::Request. `type` and `op` are NCCL's
/// numbers.
struct Reduction {
  nccl::NcclCommunicator* communicator;
  const void* send;
  void* receive;
  std::size_t count;  ///< elements; of a rank's block where it scatters
  bool scatters;
  nccl::Type type;
  nccl::Op op;
  const char* tag;  ///< "": the tensor is recognised by its buffer
  cudaStream_t stream;
  bool compressed;  ///< out; false: to be made the exact way
};

/// What a rank tells the others of its communicator: `count` numbers, at most 32; `all` has room for those of
/// all ranks.
struct Comparison {
  nccl::NcclCommunicator* communicator;
  const std::uint64_t* mine;
  std::size_t count;
  std::uint64_t* all;
};

/// A communicator that is to have two levels where they fit: `hosts` has a number of each rank's node.
struct LevelRequest {
  nccl::NcclCommunicator* communicator;
  const std::uint64_t* hosts;
  unsigned nodes;  ///< out; 0: they do not fit
};

struct Library {
  int version;
  /// Null, with the reason in `message`, when it cannot be.
  nccl::NcclCommunicator* (*create)(const CommunicatorSettings& settings, char* message, std::size_t size);
  /// Its memory goes back when what uses it is over.
  void (*destroy)(nccl::NcclCommunicator* communicator);
  /// Before NCCL aborts it: a call in progress in another thread ends. Any thread.
  void (*abort)(nccl::NcclCommunicator* communicator);
  CommunicatorStatistics (*statistics)(const nccl::NcclCommunicator* communicator);
  nccl::Result (*reduce)(Reduction* calls, std::size_t count);
  /// Collective over all ranks of each; waits.
  nccl::Result (*compare)(Comparison* comparisons, std::size_t count);
  /// Collective over all ranks of each; waits.
  nccl::Result (*make_levels)(LevelRequest* requests, std::size_t count);
  /// Before NCCL's communicator is destroyed.
  void (*close)(nccl::NcclCommunicator* communicator);
  /// Whether the stream is being captured into a graph.
  bool (*is_capturing)(cudaStream_t stream);
  /// False when kernels on `device` cannot use the memory at `address`: host memory that is not registered.
  bool (*is_reachable)(const void* address, int device);
  /// onebit::LogLevel's numbers.
  void (*set_log_level)(int level);

  /// For optimizers in device memory: optimizer/cuda/side_table.h.
  const optimizer::cuda::SideTable* optimizers;

  // ---- communicators whose messages go by one of our transports; see collective/nccl/host_wire.h ----
  /// After make_levels; collective over all ranks of each; waits.
  nccl::Result (*make_wires)(nccl::NcclCommunicator* const* communicators, std::size_t count);
  /// kSuccess, or what has failed for good. Any thread.
  nccl::Result (*state)(const nccl::NcclCommunicator* communicator);
  /// Before the process ends.
  void (*leave)(nccl::NcclCommunicator* communicator);
};

}  // namespace onebit::cuda
