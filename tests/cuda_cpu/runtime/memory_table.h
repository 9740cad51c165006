// All memory that CUDA knows: device, pinned, managed and registered ranges, and the checks that a GPU makes
// in hardware.
//
// Fresh memory is filled with NaN. With CUDA_CPU_PROTECT=1 device memory can be accessed only while a stream
// runs an operation, so that a host program which follows a device pointer crashes. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cuda_cpu/runtime/waiting.h"

namespace onebit::cuda_cpu {

struct Allocation {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
  bool registered = false;  ///< by cudaHostRegister; not ours to free
  std::size_t mapped = 0;   ///< bytes of whole pages, when it is protected
};

class MemoryTable {
 public:
  static MemoryTable& instance();

  /// Null and success for 0 bytes. cudaErrorMemoryAllocation beyond the device's memory
  /// (CUDA_CPU_DEVICE_MEMORY_MIB).
  cudaError_t allocate(void** pointer, std::size_t bytes, cudaMemoryType type, int device);
  /// cudaErrorInvalidValue unless `pointer` came from allocate with the same type, or with another but
  /// kManaged.
  cudaError_t release(void* pointer, cudaMemoryType type);
  cudaError_t register_host(void* pointer, std::size_t bytes, int device);
  cudaError_t unregister_host(void* pointer);

  std::optional<Allocation> find(const void* pointer);
  /// Bytes of device memory that are taken.
  std::size_t used(int device);
  /// Whether an operation on a device may touch the range: within one allocation, or within host memory.
  bool accessible(const void* pointer, std::size_t bytes, bool must_be_known);

  // Between these, the calling thread runs an operation.
  void begin_access();
  void end_access();

 private:
  std::map<std::uintptr_t, Allocation>::iterator locate(const void* pointer);
  void protect_all(int protection);

  Mutex mutex_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::vector<std::size_t> used_ = std::vector<std::size_t>(64);
  int running_ = 0;  ///< operations
};

/// Device memory is accessible while one exists.
class DeviceAccess {
 public:
  DeviceAccess() { MemoryTable::instance().begin_access(); }
  ~DeviceAccess() { MemoryTable::instance().end_access(); }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace onebit::cuda_cpu
