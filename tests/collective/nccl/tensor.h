// Tensors on a device, for tests: bytes that a stream writes and reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda_cpu/test_streams.h"

namespace onebit::nccl {

/// A buffer on the current device.
class Tensor {
 public:
  explicit Tensor(std::size_t bytes) : bytes_(bytes) {
    EXPECT_CUDA(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { EXPECT_CUDA(cudaFree(data_)); }

  void* data() const { return data_; }
  void write(const std::vector<std::byte>& from, cudaStream_t stream) const {
    EXPECT_CUDA(cudaMemcpyAsync(data_, from.data(), bytes_, cudaMemcpyHostToDevice, stream));
  }
  std::vector<std::byte> read(cudaStream_t stream) const {
    std::vector<std::byte> bytes(bytes_);
    EXPECT_CUDA(cudaMemcpyAsync(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    return bytes;
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace onebit::nccl
