// Pinned host memory that frees itself: what the device copies to and from, and reads and writes. Moves, does
// not copy; one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace onebit::nccl {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Zeros; empty when there is no memory left.
  explicit PinnedMemory(std::size_t bytes) {
    if (cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess ||
        cudaHostGetDevicePointer(&device_, data_, 0) != cudaSuccess) {
      cudaGetLastError();
      release();
      return;
    }
    bytes_ = bytes;
    std::memset(data_, 0, bytes);
  }
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  /// What uses it must be over.
  ~PinnedMemory() { release(); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::span<std::byte> bytes() const { return {data(), bytes_}; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// As the device sees it.
  template <typename T>
  T* device() const {
    return static_cast<T*>(device_);
  }

 private:
  void swap(PinnedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
  }
  void release() {
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
  }

  void* data_ = nullptr;
  void* device_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace onebit::nccl
