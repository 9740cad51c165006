// Device memory that frees itself, from an allocator that may be the host program's own. Moves, does not
// copy; one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace onebit::nccl {

/// How device memory is had: from the device's pool, in the order of a stream, unless the host program gives
/// a hook. `allocate` returns null when there is none left. Neither waits for the device: another
/// communicator of this process may have work there that waits for a peer. Called with the communicator's
/// device current, and for a tensor's first call alone.
struct Allocator {
  void* (*allocate)(std::size_t bytes, cudaStream_t stream,
                    void* context) = [](std::size_t bytes, cudaStream_t stream, void*) -> void* {
    void* memory = nullptr;
    if (cudaMallocAsync(&memory, bytes, stream) == cudaSuccess) return memory;
    cudaGetLastError();  // out of memory is no fault of the calls that follow
    return nullptr;
  };
  void (*release)(void* memory, cudaStream_t stream, void* context) =
      [](void* memory, cudaStream_t stream, void*) { cudaFreeAsync(memory, stream); };
  void* context = nullptr;
};

/// An allocator and the stream whose order it follows.
struct MemorySource {
  Allocator allocator;
  cudaStream_t stream = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Empty when there is no memory left.
  DeviceMemory(const MemorySource& source, std::size_t bytes)
      : source_(source),
        data_(bytes == 0 ? nullptr
                         : source.allocator.allocate(bytes, source.stream, source.allocator.context)) {
    if (data_ != nullptr) bytes_ = bytes;
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : source_(other.source_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) source_.allocator.release(data_, source_.stream, source_.allocator.context);
  }

  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  MemorySource source_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace onebit::nccl
