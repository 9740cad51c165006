// What the tests of the stand-in share: streams, memory and the words of a failure.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace onebit::cuda_cpu {

inline ::testing::AssertionResult succeeded(cudaError_t error) {
  if (error == cudaSuccess) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << cudaGetErrorString(error);
}
#define EXPECT_CUDA(call) EXPECT_TRUE(::onebit::cuda_cpu::succeeded(call))

class TestStream {
 public:
  explicit TestStream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, flags));
  }
  ~TestStream() { EXPECT_CUDA(cudaStreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void synchronize() const { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  TestEvent() { EXPECT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~TestEvent() { EXPECT_CUDA(cudaEventDestroy(event_)); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaEvent_t event_ = nullptr;
};

/// Floats on the device.
class DeviceFloats {
 public:
  explicit DeviceFloats(std::size_t count) : count_(count) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(float)));
  }
  DeviceFloats(std::size_t count, float value) : DeviceFloats(count) {
    const std::vector<float> values(count, value);
    EXPECT_CUDA(cudaMemcpy(data_, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  }
  ~DeviceFloats() { EXPECT_CUDA(cudaFree(data_)); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  float* data() const { return data_; }
  /// After all that `stream` has been given.
  std::vector<float> read(cudaStream_t stream) const {
    std::vector<float> values(count_);
    EXPECT_CUDA(
        cudaMemcpyAsync(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    return values;
  }

 private:
  std::size_t count_;
  float* data_ = nullptr;
};

/// A word of pinned memory at which a stream stops until the host opens it.
class StreamGate {
 public:
  StreamGate();
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  void stop(cudaStream_t stream) const;
  void open() const { __atomic_store_n(word_, 1U, __ATOMIC_RELEASE); }
  /// Lets a stream open it.
  void open_by(cudaStream_t stream) const;

 private:
  unsigned* word_ = nullptr;
};

}  // namespace onebit::cuda_cpu
