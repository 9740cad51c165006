// The chunks of a large call overlap: the next one is coded while the one before is on the wire. The wire is
// held up by a gate, so that nothing depends on time.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device_ranks.h"
#include "support/simulation.h"

namespace {

std::atomic<int> g_kernels_run = 0;

void CUDART_CB count_kernel(void*) {
  ++g_kernels_run;
}

}  // namespace

/// In the place of the stand-in's: calls that one, and counts the kernel when it has run.
extern "C" cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared_bytes, cudaStream_t stream) {
  using Launch = cudaError_t (*)(const void*, dim3, dim3, void**, std::size_t, cudaStream_t);
  static const auto real = reinterpret_cast<Launch>(dlsym(RTLD_NEXT, "cudaLaunchKernel"));
  const cudaError_t error = real(kernel, grid, block, arguments, shared_bytes, stream);
  return error == cudaSuccess ? cudaLaunchHostFunc(stream, count_kernel, nullptr) : error;
}

namespace onebit::nccl {
namespace {

using testing::input;
using testing::Simulation;

/// Waits until so many kernels have run.
bool have_run(int kernels) {
  for (int i = 0; i < 30'000 && g_kernels_run < kernels; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return g_kernels_run >= kernels;
}

const cuda_cpu::StreamGate* g_gate = nullptr;
std::atomic<int> g_sends = 0;

/// NCCL whose first send of each of two ranks waits for the gate.
Functions gated_nccl() {
  Functions functions = linked_nccl();
  functions.send = [](const void* buffer, std::size_t count, Type type, int peer, Comm comm,
                      cudaStream_t stream) {
    if (g_sends++ < 2) g_gate->stop(stream);
    return linked_nccl().send(buffer, count, type, peer, comm, stream);
  };
  return functions;
}

TEST(NcclChunks, TheNextChunkIsCodedWhileTheOneBeforeIsOnTheWire) {
  constexpr std::size_t kCount = 30'000;
  CommunicatorOptions options;
  options.chunk = 4096;
  const std::vector<std::vector<std::byte>> inputs = {input(DataType::kFloat32, kCount, 1),
                                                      input(DataType::kFloat32, kCount, 2)};
  const auto expected = Simulation(2, kCount, DataType::kFloat32, ReduceOp::kAvg, {}).call(inputs);
  const cuda_cpu::StreamGate gate;
  g_gate = &gate;
  run_device_ranks(2, options, gated_nccl(), [&](DeviceRank& here) {
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    const Tensor tensor(4 * kCount);
    tensor.write(inputs[rank], here.nccl.stream);
    Request request{here.communicator.get(), tensor.data(), tensor.data(),    kCount, DataType::kFloat32,
                    ReduceOp::kAvg,          "t",           here.nccl.stream, false};
    ASSERT_EQ(run({&request, 1}), kSuccess);
    // Both ranks' first two chunks are coded, and nothing else can be.
    EXPECT_TRUE(have_run(4));
    if (rank == 0) gate.open();
    ASSERT_EQ(tensor.read(here.nccl.stream), expected);
  });
}

TEST(NcclChunks, TheNextChunkIsCodedWhileTheOneBeforeWaitsForAPeerOnATransportOfOurs) {
  constexpr std::size_t kCount = 30'000;
  CommunicatorOptions options;
  options.chunk = 4096;
  const auto of = [](std::size_t rank, std::size_t call) {
    return input(DataType::kFloat32, kCount, 10 * rank + call);
  };
  Simulation simulation(2, kCount, DataType::kFloat32, ReduceOp::kAvg, {});
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t call = 0; call < 2; ++call)
    expected.push_back(simulation.call({of(0, call), of(1, call)}));
  std::atomic<int> first_calls = 0;
  run_device_ranks(2, options, [&](DeviceRank& here) {
    ASSERT_NO_FATAL_FAILURE(carry_by_transport({here.communicator.get()}, "tcp"));
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    const Tensor tensor(4 * kCount);
    for (std::size_t call = 0; call < 2; ++call) {
      tensor.write(of(rank, call), here.nccl.stream);
      // The first call makes memory, together. In the second, rank 0's first two chunks are all that is coded
      // before rank 1 comes.
      if (call == 1 && rank == 1) {
        EXPECT_TRUE(have_run(2));
      }
      Request request{here.communicator.get(), tensor.data(), tensor.data(),    kCount, DataType::kFloat32,
                      ReduceOp::kAvg,          "t",           here.nccl.stream, false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      ASSERT_EQ(tensor.read(here.nccl.stream), expected[call]);
      if (call == 1) continue;
      ++first_calls;
      while (first_calls < 2) std::this_thread::yield();
      if (rank == 0) g_kernels_run = 0;
      ++first_calls;
      while (first_calls < 4) std::this_thread::yield();
    }
  });
}

TEST(NcclChunks, AnAutomaticChunkIsAnEighthOfALargeTensorAndASmallOneIsWhole) {
  const auto chunks = [](std::size_t count, std::size_t ranks) {
    return Layout(count, ranks, {}, 0).plan().chunks();
  };
  EXPECT_EQ(chunks(1, 2), 1u);
  EXPECT_EQ(chunks(std::size_t{8} << 20, 4), 1u);
  EXPECT_EQ(chunks(std::size_t{9} << 20, 4), 2u);
  EXPECT_EQ(chunks(std::size_t{64} << 20, 8), 8u);
  EXPECT_EQ(chunks(std::size_t{512} << 20, 8), 8u);
  EXPECT_EQ(chunks(std::size_t{1} << 30, 8), 16u) << "memory for messages is bounded";
}

}  // namespace
}  // namespace onebit::nccl
