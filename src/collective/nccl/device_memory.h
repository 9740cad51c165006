// Device memory that frees itself, from an allocator that may be the host program's own. Moves, does not
// copy; one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace onebit::nccl {

/// How device memory is had: cudaMalloc and cudaFree unless the host program gives a hook. `allocate` returns
/// null when there is none left. Called with the communicator's device current; never once a tensor's first
/// call is over.
struct Allocator {
  void* (*allocate)(std::size_t bytes, void* context) = [](std::size_t bytes, void*) -> void* {
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError();  // out of memory is no fault of the calls that follow
    return nullptr;
  };
  void (*release)(void* memory, void* context) = [](void* memory, void*) { cudaFree(memory); };
  void* context = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Empty when there is no memory left.
  DeviceMemory(const Allocator& allocator, std::size_t bytes)
      : allocator_(allocator), data_(bytes == 0 ? nullptr : allocator.allocate(bytes, allocator.context)) {
    if (data_ != nullptr) bytes_ = bytes;
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : allocator_(other.allocator_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) allocator_.release(data_, allocator_.context);
  }

  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Allocator allocator_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace onebit::nccl
