// An Exchange whose memory, passes and ranks are a CUDA stream's and a communicator's of NCCL.
//
// Without the CUDA parts of the build there is none, and making one says so. Threads: as Exchange's.
#pragma once

#include <memory>

#include "base/settings.h"
#include "base/status.h"
#include "optimizer/exchange.h"

namespace onebit::optimizer {

/// Where a program has its tensors: handles of CUDA and NCCL.
struct DevicePlace {
  void* comm = nullptr;          ///< ncclComm_t; null: one rank, on the current device
  void* stream = nullptr;        ///< cudaStream_t of the communicator's device
  const void* caller = nullptr;  ///< an address in the program, whose NCCL is meant
};

/// Both handles must outlive it. Not collective: Exchange::made is. An error says which library is missing
/// or what of the place cannot be used, and what to set.
Result<std::unique_ptr<Exchange>> make_device_exchange(const Settings& settings, const DevicePlace& place);

}  // namespace onebit::optimizer
