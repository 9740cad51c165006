// Kernels in streams: launches, order within and between streams, events, host functions, stream memory
// operations, devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "cuda_cpu/test_kernels.h"
#include "cuda_cpu/test_streams.h"

namespace onebit::cuda_cpu {
namespace {

TEST(Launch, AKernelGetsItsArgumentsAsTheyWereAtTheCall) {
  const TestStream stream;
  const StreamGate gate;
  const DeviceFloats data(1000, 2.0F);
  gate.stop(stream);
  Line line{3.0F, 0.5, 'x'};
  EXPECT_CUDA(launch_line(data.data(), 1000, line, stream));
  line = {};
  gate.open();
  for (const float value : data.read(stream)) ASSERT_EQ(value, 6.5F);
}

TEST(Launch, SharedMemoryAndShufflesWorkThroughTheStream) {
  const TestStream stream;
  const DeviceFloats data(1024, 0.25F);
  const DeviceFloats sum(1);
  EXPECT_CUDA(launch_reverse(data.data(), 1024, stream));
  EXPECT_CUDA(launch_sum(data.data(), 1024, sum.data(), stream));
  EXPECT_EQ(sum.read(stream)[0], 256.0F);
}

TEST(Launch, WhatAGpuCannotRunIsRefused) {
  const TestStream stream;
  EXPECT_CUDA(launch_nothing(dim3(1), dim3(1024), 0, stream));
  EXPECT_EQ(launch_nothing(dim3(1), dim3(1025), 0, stream), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch_nothing(dim3(0), dim3(32), 0, stream), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch_nothing(dim3(1), dim3(0), 0, stream), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch_nothing(dim3(1, 65536), dim3(32), 0, stream), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch_nothing(dim3(1), dim3(32), 48 * 1024 + 1, stream), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(allow_shared_bytes(228 * 1024), cudaErrorInvalidValue);
  EXPECT_CUDA(allow_shared_bytes(227 * 1024));
  EXPECT_CUDA(launch_nothing(dim3(1), dim3(32), 227 * 1024, stream));
  cudaGetLastError();
}

TEST(Launch, AttributesThatWouldChangeTheKernelAreRefused) {
  const TestStream stream;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.stream = stream;
  EXPECT_CUDA(launch_nothing(config));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT_EQ(launch_nothing(config), cudaErrorNotSupported);
  cudaGetLastError();
}

TEST(Streams, OperationsOfOneStreamRunInOrder) {
  const TestStream stream;
  const DeviceFloats data(100, 1.0F);
  for (int i = 0; i < 20; ++i) EXPECT_CUDA(launch_line(data.data(), 100, {2.0F, -1.0, 'x'}, stream));
  EXPECT_CUDA(launch_line(data.data(), 100, {1.0F, 41.0, 'x'}, stream));
  for (const float value : data.read(stream)) ASSERT_EQ(value, 42.0F);
}

TEST(Streams, AStreamDoesNotWaitForAnother) {
  const TestStream stopped;
  const TestStream other;
  const StreamGate gate;
  const DeviceFloats data(64, 1.0F);
  gate.stop(stopped);
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, other));
  other.synchronize();
  EXPECT_EQ(cudaStreamQuery(stopped), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(other), cudaSuccess);
  gate.open();
  stopped.synchronize();
  EXPECT_EQ(cudaStreamQuery(stopped), cudaSuccess);
}

TEST(Streams, AStreamWaitsForAnEventOfAnother) {
  const TestStream first;
  const TestStream second;
  const TestEvent event;
  const StreamGate gate;
  const DeviceFloats data(64, 1.0F);
  gate.stop(first);
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, first));
  EXPECT_CUDA(cudaEventRecord(event, first));
  EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));
  EXPECT_CUDA(launch_line(data.data(), 64, {10.0F, 0.0, 'x'}, second));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open();
  for (const float value : data.read(second)) ASSERT_EQ(value, 20.0F);
  EXPECT_CUDA(cudaEventQuery(event));
}

TEST(Streams, AWaitIsForTheEventAsItWasRecordedAtTheCall) {
  const TestStream first;
  const TestStream second;
  const TestEvent event;
  const StreamGate gate;
  EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));  // never recorded: no wait
  EXPECT_CUDA(cudaEventRecord(event, first));
  EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));
  gate.stop(first);
  EXPECT_CUDA(cudaEventRecord(event, first));
  second.synchronize();
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(event));
}

TEST(Streams, AStreamOpensWhatAnotherWaitsFor) {
  const TestStream first;
  const TestStream second;
  const StreamGate gate;
  const DeviceFloats data(64, 1.0F);
  gate.stop(second);
  EXPECT_CUDA(launch_line(data.data(), 64, {10.0F, 0.0, 'x'}, second));
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, first));
  gate.open_by(first);
  for (const float value : data.read(second)) ASSERT_EQ(value, 20.0F);
}

TEST(Streams, TheLegacyStreamIsOrderedWithBlockingStreamsAlone) {
  const TestStream blocking(cudaStreamDefault);
  const TestStream free;
  const StreamGate blocking_gate;
  const StreamGate free_gate;
  const DeviceFloats data(64, 1.0F);
  free_gate.stop(free);
  blocking_gate.stop(blocking);
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, blocking));
  EXPECT_CUDA(launch_line(data.data(), 64, {10.0F, 0.0, 'x'}, nullptr));
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 5.0, 'x'}, blocking));
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  blocking_gate.open();
  blocking.synchronize();
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(free), cudaErrorNotReady);
  for (const float value : data.read(blocking)) EXPECT_EQ(value, 25.0F);
  free_gate.open();
}

TEST(Streams, TheWorkOfADestroyedStreamIsDone) {
  const StreamGate gate;
  const DeviceFloats data(64, 1.0F);
  {
    const TestStream stream;
    gate.stop(stream);
    EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, stream));
  }
  gate.open();
  EXPECT_CUDA(cudaDeviceSynchronize());
  const TestStream other;
  for (const float value : data.read(other)) ASSERT_EQ(value, 2.0F);
}

TEST(Streams, EachThreadHasAStreamOfItsOwn) {
  const StreamGate gate;
  gate.stop(cudaStreamPerThread);
  std::thread([] { EXPECT_CUDA(cudaStreamSynchronize(cudaStreamPerThread)); }).join();
  EXPECT_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

TEST(Streams, AHostFunctionRunsInItsPlaceAndMayNotCallCuda) {
  struct Seen {
    std::atomic<int> calls{0};
    cudaError_t malloc_error = cudaSuccess;
    cudaError_t wait_error = cudaSuccess;
    cudaError_t launch_error = cudaSuccess;
    float* data = nullptr;
  } seen;
  const TestStream stream;
  const StreamGate gate;
  gate.stop(stream);
  EXPECT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        auto& here = *static_cast<Seen*>(data);
        void* memory = nullptr;
        here.malloc_error = cudaMalloc(&memory, 16);
        here.wait_error = cudaStreamSynchronize(nullptr);
        here.launch_error = launch_line(nullptr, 0, {}, nullptr);
        ++here.calls;
      },
      &seen));
  EXPECT_EQ(seen.calls, 0);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.malloc_error, cudaErrorNotPermitted);
  EXPECT_EQ(seen.wait_error, cudaErrorNotPermitted);
  EXPECT_EQ(seen.launch_error, cudaErrorNotPermitted);
}

TEST(Devices, AKernelOrAnEventMayNotGoToAStreamOfAnotherDevice) {
  const TestStream on_first;
  const TestEvent of_first;
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(launch_nothing(dim3(1), dim3(32), 0, on_first), cudaErrorInvalidResourceHandle);
  {
    const TestStream on_second;
    EXPECT_EQ(cudaEventRecord(of_first, on_second), cudaErrorInvalidResourceHandle);
    EXPECT_CUDA(launch_nothing(dim3(1), dim3(32), 0, on_second));
    EXPECT_CUDA(cudaEventRecord(of_first, on_first));
    EXPECT_CUDA(cudaStreamWaitEvent(on_second, of_first, 0));
    on_second.synchronize();
    int device = -1;
    EXPECT_CUDA(cudaStreamGetDevice(on_second, &device));
    EXPECT_EQ(device, 1);
  }
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(Devices, AHandleThatIsNoneIsRefused) {
  cudaStream_t gone = nullptr;
  EXPECT_CUDA(cudaStreamCreate(&gone));
  EXPECT_CUDA(cudaStreamDestroy(gone));
  EXPECT_EQ(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(launch_nothing(dim3(1), dim3(32), 0, gone), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST(Devices, WorkOnAllDevicesRunsAtOnce) {
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  ASSERT_GE(count, 2);
  std::vector<std::thread> threads;
  for (int device = 0; device < count; ++device) {
    threads.emplace_back([device] {
      EXPECT_CUDA(cudaSetDevice(device));
      const TestStream stream;
      const DeviceFloats data(500, static_cast<float>(device));
      EXPECT_CUDA(launch_line(data.data(), 500, {2.0F, 1.0, 'x'}, stream));
      for (const float value : data.read(stream)) EXPECT_EQ(value, static_cast<float>(2 * device + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MissingDeathTest, AFunctionThatIsNotImplementedSaysItsName) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  cudaArray_t array = nullptr;
  EXPECT_DEATH(cudaFreeArray(array), "cuda_cpu: cudaFreeArray is not implemented");
}

}  // namespace
}  // namespace onebit::cuda_cpu
