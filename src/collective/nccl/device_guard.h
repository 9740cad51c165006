// Makes a device current while it lives, and then the one that was. A thread's own.
#pragma once

#include <cuda_runtime_api.h>

namespace onebit::nccl {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ != cudaSuccess || before_ == device) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace onebit::nccl
