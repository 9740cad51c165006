// An array in device memory for the codec's tests, filled from the host and read back. A CUDA error ends the
// program.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../test_data.h"

namespace onebit::codec::test {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// `room` bytes of device memory, `offset` bytes after an address aligned to 256.
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t room, std::size_t offset = 0) : offset_(offset) {
    check(cudaMalloc(&data_, room + offset + 16), "cudaMalloc");
  }
  /// It begins with a copy of the `bytes` bytes at `from`.
  DeviceArray(const void* from, std::size_t bytes, std::size_t offset = 0, std::size_t room = 0)
      : DeviceArray(std::max(bytes, room), offset) {
    check(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void* data() const { return static_cast<char*>(data_) + offset_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }
  /// The first `bytes` bytes.
  Buffer bytes(std::size_t bytes) const {
    Buffer copy(bytes);
    copy_to(copy.data(), bytes);
    return copy;
  }
  void copy_to(void* to, std::size_t bytes) const {
    check(cudaMemcpy(to, data(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
  }

 private:
  std::size_t offset_;
  void* data_ = nullptr;
};

}  // namespace onebit::codec::test
