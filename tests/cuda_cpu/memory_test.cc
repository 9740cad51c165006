// Device memory, copies and graphs of the stand-in: what a GPU refuses is refused, what it leaves undefined
// shows.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "cuda_cpu/test_kernels.h"
#include "cuda_cpu/test_streams.h"

namespace onebit::cuda_cpu {
namespace {

TEST(Memory, FreshDeviceMemoryIsNaN) {
  const TestStream stream;
  for (const float value : DeviceFloats(100).read(stream)) EXPECT_TRUE(std::isnan(value));
}

TEST(Memory, AStreamsOwnAllocationIsFilledAtItsPlaceInTheStream) {
  const TestStream stream;
  const StreamGate gate;
  float* data = nullptr;
  gate.stop(stream);
  EXPECT_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&data), 64 * sizeof(float), stream));
  EXPECT_CUDA(cudaMemsetAsync(data, 0, 64 * sizeof(float), stream));
  EXPECT_CUDA(launch_line(data, 64, {1.0F, 7.0, 'x'}, stream));
  gate.open();
  std::vector<float> values(64);
  EXPECT_CUDA(cudaMemcpyAsync(values.data(), data, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaFreeAsync(data, stream));
  stream.synchronize();
  for (const float value : values) EXPECT_EQ(value, 7.0F);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue) << "freed twice";
  cudaGetLastError();
}

TEST(Memory, PointersTellWhatTheyAre) {
  cudaPointerAttributes seen{};
  int on_stack = 0;
  EXPECT_CUDA(cudaPointerGetAttributes(&seen, &on_stack));
  EXPECT_EQ(seen.type, cudaMemoryTypeUnregistered);
  EXPECT_CUDA(cudaSetDevice(2));
  {
    const DeviceFloats data(10);
    EXPECT_CUDA(cudaPointerGetAttributes(&seen, data.data() + 9));
    EXPECT_EQ(seen.type, cudaMemoryTypeDevice);
    EXPECT_EQ(seen.device, 2);
    EXPECT_EQ(seen.hostPointer, nullptr);
    EXPECT_CUDA(cudaPointerGetAttributes(&seen, data.data() + 10));
    EXPECT_EQ(seen.type, cudaMemoryTypeUnregistered);
  }
  EXPECT_CUDA(cudaSetDevice(0));
  void* pinned = nullptr;
  EXPECT_CUDA(cudaMallocHost(&pinned, 16));
  EXPECT_CUDA(cudaPointerGetAttributes(&seen, pinned));
  EXPECT_EQ(seen.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue) << "pinned memory is for cudaFreeHost";
  EXPECT_CUDA(cudaFreeHost(pinned));
  EXPECT_CUDA(cudaHostRegister(&on_stack, sizeof on_stack, 0));
  EXPECT_EQ(cudaHostRegister(&on_stack, sizeof on_stack, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_CUDA(cudaPointerGetAttributes(&seen, &on_stack));
  EXPECT_EQ(seen.type, cudaMemoryTypeHost);
  EXPECT_CUDA(cudaHostUnregister(&on_stack));
  EXPECT_EQ(cudaHostUnregister(&on_stack), cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST(Memory, TheDriverTellsTheHostsFromADevices) {
  const auto attribute = [](CUpointer_attribute which, const void* address, CUresult due = CUDA_SUCCESS) {
    unsigned value = 77;
    EXPECT_EQ(cuPointerGetAttribute(&value, which, reinterpret_cast<CUdeviceptr>(address)), due);
    return value;
  };
  const DeviceFloats data(10);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, data.data() + 3), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, data.data() + 3), 0U);
  void* memory = nullptr;
  EXPECT_CUDA(cudaMallocManaged(&memory, 16, cudaMemAttachGlobal));
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, memory), 1U);
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaMallocHost(&memory, 16));
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory), CU_MEMORYTYPE_HOST);
  EXPECT_CUDA(cudaFreeHost(memory));
  int on_stack = 0;
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &on_stack, CUDA_ERROR_INVALID_VALUE), 77U);
}

TEST(Memory, AFullDeviceGivesNothingUntilSomethingIsFreed) {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&free, &total));
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  EXPECT_CUDA(cudaMalloc(&memory, 1 << 20));
  std::size_t less = 0;
  EXPECT_CUDA(cudaMemGetInfo(&less, &total));
  EXPECT_EQ(free - less, std::size_t{1} << 20);
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaMemGetInfo(&less, &total));
  EXPECT_EQ(free, less);
  EXPECT_CUDA(cudaMalloc(&memory, 0));
  EXPECT_EQ(memory, nullptr);
  EXPECT_CUDA(cudaFree(nullptr));
  cudaGetLastError();
}

TEST(Copies, ACopyFromPageableMemoryHasReadItWhenTheCallReturns) {
  const TestStream stream;
  const StreamGate gate;
  const DeviceFloats data(64);
  std::vector<float> values(64, 3.0F);
  gate.stop(stream);
  EXPECT_CUDA(
      cudaMemcpyAsync(data.data(), values.data(), 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  values.assign(64, 4.0F);
  gate.open();
  for (const float value : data.read(stream)) EXPECT_EQ(value, 3.0F);
}

TEST(Copies, OutOfRangeOrInTheWrongDirectionTheyAreRefused) {
  const DeviceFloats data(64);
  std::vector<float> values(65);
  EXPECT_EQ(cudaMemcpy(data.data(), values.data(), 65 * sizeof(float), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(values.data(), values.data() + 1, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(data.data(), 0, 65 * sizeof(float)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(values.data(), 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(nullptr, values.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
  cudaGetLastError();
}

TEST(Copies, ADeviceToDeviceCopyLeavesTheHostAlone) {
  const TestStream stream;
  const StreamGate gate;
  const DeviceFloats from(64, 5.0F);
  const DeviceFloats to(64, 0.0F);
  gate.stop(stream);
  EXPECT_CUDA(cudaMemcpyAsync(to.data(), from.data(), 64 * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  gate.open();
  for (const float value : to.read(stream)) EXPECT_EQ(value, 5.0F);
}

TEST(Graphs, ACaptureRunsNothingAndAGraphAllEachTime) {
  const TestStream stream;
  const DeviceFloats data(64, 1.0F);
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_CUDA(launch_line(data.data(), 64, {2.0F, 0.0, 'x'}, stream));
  EXPECT_CUDA(launch_line(data.data(), 64, {1.0F, 1.0, 'x'}, stream));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  for (const float value : data.read(stream)) EXPECT_EQ(value, 1.0F);
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) EXPECT_CUDA(cudaGraphLaunch(executable, stream));
  for (const float value : data.read(stream)) EXPECT_EQ(value, 15.0F);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
}

TEST(Graphs, AStreamJoinsACaptureByAnEventAndMustBeJoinedBack) {
  const TestStream first;
  const TestStream second;
  const TestEvent fork;
  const TestEvent join;
  const DeviceFloats data(64, 1.0F);
  for (const bool joined_back : {true, false}) {
    EXPECT_CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    EXPECT_CUDA(cudaEventRecord(fork, first));
    EXPECT_CUDA(cudaStreamWaitEvent(second, fork, 0));
    EXPECT_CUDA(launch_line(data.data(), 64, {2.0F, 0.0, 'x'}, second));
    EXPECT_CUDA(cudaEventRecord(join, second));
    if (joined_back) {
      EXPECT_CUDA(cudaStreamWaitEvent(first, join, 0));
    }
    EXPECT_EQ(cudaEventSynchronize(join), cudaErrorCapturedEvent);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(second, &graph), cudaErrorStreamCaptureUnmatched);
    EXPECT_EQ(cudaStreamEndCapture(first, &graph),
              joined_back ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    EXPECT_EQ(graph != nullptr, joined_back);
    if (graph != nullptr) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
    EXPECT_CUDA(cudaStreamQuery(second));
  }
  for (const float value : data.read(first)) EXPECT_EQ(value, 1.0F);
  cudaGetLastError();
}

TEST(Graphs, WaitingOrAllocatingMakesACaptureInvalid) {
  const TestStream stream;
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(cudaMalloc(&memory, 16));
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaFree(memory));
  cudaGetLastError();
}

class ProtectedMemoryDeathTest : public ::testing::Test {
 protected:
  ProtectedMemoryDeathTest() { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  /// In the process that shall die.
  static void follow(bool device) {
    ::setenv("CUDA_CPU_PROTECT", "1", 1);
    float* data = nullptr;
    EXPECT_CUDA(device ? cudaMalloc(reinterpret_cast<void**>(&data), 64 * sizeof(float))
                       : cudaMallocHost(reinterpret_cast<void**>(&data), 64 * sizeof(float)));
    EXPECT_CUDA(cudaMemset(data, 0, 64 * sizeof(float)));
    EXPECT_CUDA(launch_line(data, 64, {1.0F, 1.0, 'x'}, nullptr));
    EXPECT_CUDA(cudaDeviceSynchronize());
    ::_exit(data[3] == 1.0F ? 3 : 4);
  }
};

TEST_F(ProtectedMemoryDeathTest, AHostThatFollowsADevicePointerCrashes) {
  EXPECT_DEATH(follow(true), "");
  EXPECT_EXIT(follow(false), ::testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace onebit::cuda_cpu
