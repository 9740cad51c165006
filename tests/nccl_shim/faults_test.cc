// What goes wrong under the shim in one process, with ONEBIT_COMPRESS=all and ONEBIT_MIN_SIZE=1K: an error in
// the call, never a hang, a crash or a wrong sum.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "job.h"

namespace onebit::shim {
namespace {

constexpr std::size_t kCount = 10000;

TEST(ShimFaults, AHostPointerIsRefused) {
  run_nccl_ranks(2, [](NcclRank& here) {
    std::vector<float> host(kCount);
    const Tensor device(4 * kCount);
    EXPECT_EQ(ncclAllReduce(host.data(), device.data(), kCount, ncclFloat, ncclSum, here.comm, here.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(device.data(), host.data(), kCount, ncclFloat, ncclSum, here.comm, here.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(nullptr, device.data(), kCount, ncclFloat, ncclSum, here.comm, here.stream),
              ncclInvalidArgument);
  });
}

TEST(ShimFaults, APointerThatIsNotAlignedToItsElementsIsRefused) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor tensor(4 * kCount + 4);
    void* const odd = static_cast<std::byte*>(tensor.data()) + 1;
    EXPECT_EQ(ncclAllReduce(odd, odd, kCount, ncclFloat, ncclSum, here.comm, here.stream),
              ncclInvalidArgument);
  });
}

TEST(ShimFaults, ABufferAtAnyAlignmentOfItsElementsIsCompressed) {
  run_nccl_ranks(2, [](NcclRank& here) {
    constexpr std::size_t kOdd = 9001;
    const std::vector<std::vector<std::byte>> x = {input(DataType::kFloat32, kOdd, 1),
                                                   input(DataType::kFloat32, kOdd, 2)};
    const auto expected = Simulation(2, kOdd, DataType::kFloat32, ReduceOp::kSum, {}).call(x);
    const Tensor tensor(4 * kOdd + 4);
    std::byte* const shifted = static_cast<std::byte*>(tensor.data()) + 4;
    const auto& own = x[static_cast<std::size_t>(here.rank)];
    EXPECT_CUDA(cudaMemcpyAsync(shifted, own.data(), own.size(), cudaMemcpyHostToDevice, here.stream));
    EXPECT_NCCL(ncclAllReduce(shifted, shifted, kOdd, ncclFloat, ncclSum, here.comm, here.stream));
    std::vector<std::byte> found(own.size());
    EXPECT_CUDA(cudaMemcpyAsync(found.data(), shifted, found.size(), cudaMemcpyDeviceToHost, here.stream));
    EXPECT_CUDA(cudaStreamSynchronize(here.stream));
    EXPECT_EQ(found, expected);
  });
}

TEST(ShimFaults, AStreamOfAnotherDeviceIsAnError) {
  run_nccl_ranks(2, [](NcclRank& here) {
    EXPECT_CUDA(cudaSetDevice(here.rank + 2));
    cudaStream_t foreign = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking));
    EXPECT_CUDA(cudaSetDevice(here.rank));
    const Tensor tensor(4 * kCount);
    EXPECT_NE(ncclAllReduce(tensor.data(), tensor.data(), kCount, ncclFloat, ncclSum, here.comm, foreign),
              ncclSuccess);
    EXPECT_CUDA(cudaStreamDestroy(foreign));
  });
}

TEST(ShimFaults, DestroyingACommunicatorWithWorkQueuedLosesNoResult) {
  constexpr std::size_t kCalls = 3;
  std::vector<std::vector<std::byte>> expected;
  Simulation simulation(2, kCount, DataType::kFloat32, ReduceOp::kSum, {});
  const auto of = [](std::size_t rank, std::size_t call) {
    return input(DataType::kFloat32, kCount, 10 * rank + call);
  };
  for (std::size_t call = 0; call < kCalls; ++call)
    expected.push_back(simulation.call({of(0, call), of(1, call)}));
  run_nccl_ranks(2, [&](NcclRank& here) {
    const Tensor tensor(4 * kCount);
    const Tensor results[kCalls] = {Tensor(4 * kCount), Tensor(4 * kCount), Tensor(4 * kCount)};
    for (std::size_t call = 0; call < kCalls; ++call) {
      tensor.write(of(static_cast<std::size_t>(here.rank), call), here.stream);
      EXPECT_NCCL(ncclAllReduce(tensor.data(), results[call].data(), kCount, ncclFloat, ncclSum, here.comm,
                                here.stream));
    }
    EXPECT_NCCL(ncclCommDestroy(here.comm));
    here.comm = nullptr;
    for (std::size_t call = 0; call < kCalls; ++call)
      EXPECT_EQ(results[call].read(here.stream), expected[call]) << call;
  });
}

TEST(ShimFaults, AnAbortFromAnotherThreadEndsACallWhosePeerDoesNotCome) {
  std::atomic<bool> is_over = false;
  run_nccl_ranks(2, [&](NcclRank& here) {
    if (here.rank == 1) {
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      const Tensor tensor(4 * kCount);
      const ncclComm_t comm = here.comm;
      std::atomic<bool> is_in_call = false;
      std::thread aborter([&] {
        EXPECT_CUDA(cudaSetDevice(0));
        while (!is_in_call) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ncclCommAbort(comm);
      });
      is_in_call = true;
      // It waits for what the other rank says of its memory.
      ncclAllReduce(tensor.data(), tensor.data(), kCount, ncclFloat, ncclSum, comm, here.stream);
      aborter.join();
      cudaStreamSynchronize(here.stream);
      is_over = true;
    }
    if (here.rank == 1) ncclCommAbort(here.comm);
    here.comm = nullptr;
  });
}

TEST(ShimFaults, CommunicatorsOfManyThreadsComeAndGoAtOnce) {
  std::vector<std::thread> jobs;
  for (int job = 0; job < 3; ++job) {
    jobs.emplace_back([] {
      for (int round = 0; round < 3; ++round) {
        run_nccl_ranks(2, [](NcclRank& here) {
          const Tensor tensor(4 * kCount);
          const std::vector<std::vector<std::byte>> x = {input(DataType::kFloat32, kCount, 1),
                                                         input(DataType::kFloat32, kCount, 2)};
          const auto expected = Simulation(2, kCount, DataType::kFloat32, ReduceOp::kAvg, {}).call(x);
          EXPECT_EQ(all_reduce(here, tensor, x[static_cast<std::size_t>(here.rank)]), expected);
        });
      }
    });
  }
  for (std::thread& job : jobs) job.join();
}

}  // namespace
}  // namespace onebit::shim
