// What a communicator does on its stream's thread: point-to-point transfers and collectives on device memory.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_cpu/nccl/communicator.h"

namespace onebit::nccl_stand_in {

struct Task {
  enum class Kind : std::uint8_t {
    kSend,
    kReceive,
    kAllReduce,
    kReduce,
    kReduceScatter,
    kBroadcast,
    kAllGather,
    kAllToAll,
    kGather,
    kScatter,
  };
  Kind kind;
  cudaStream_t stream;
  const void* send;
  void* receive;
  std::size_t count;  ///< of elements, as in the call
  ncclDataType_t type;
  int peer = 0;  ///< or root
  ncclRedOp_t op = ncclSum;
  PremultipliedSum factor = {};  ///< by which each rank multiplies what it gives, if in use

  bool point_to_point() const { return kind <= Kind::kReceive; }
};

/// Runs tasks that were issued in one group: the collectives in their order, then all transfers at once.
/// False when the communicator broke.
bool run(Communicator& communicator, const std::vector<Task>& tasks);

}  // namespace onebit::nccl_stand_in
