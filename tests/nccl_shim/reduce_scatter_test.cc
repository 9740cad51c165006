// Reduce-scatters of an NCCL job under the shim, with ONEBIT_COMPRESS='tag=grad*' and ONEBIT_MIN_SIZE=1K.
#include <gtest/gtest.h>

#include "job.h"
#include "support/scatter_simulation.h"

namespace onebit::shim {
namespace {

using testing::ScatterSimulation;

constexpr std::size_t kBlock = 4099;

std::vector<std::byte> input_of(std::size_t rank, std::size_t call, std::size_t ranks) {
  return input(DataType::kFloat32, kBlock * ranks, 100 * rank + call);
}

/// What each rank gets from `calls` compressed calls, one after the other.
std::vector<std::vector<std::vector<std::byte>>> simulated(std::size_t ranks, std::size_t calls) {
  ScatterSimulation simulation(ranks, kBlock, DataType::kFloat32, ReduceOp::kAvg, {});
  std::vector<std::vector<std::vector<std::byte>>> results;
  for (std::size_t call = 0; call < calls; ++call) {
    std::vector<std::vector<std::byte>> inputs;
    for (std::size_t rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, call, ranks));
    results.push_back(simulation.call(inputs));
  }
  return results;
}

/// The first `bytes` bytes of `from`, after what the stream was given.
std::vector<std::byte> read(const void* from, std::size_t bytes, cudaStream_t stream) {
  std::vector<std::byte> found(bytes);
  EXPECT_CUDA(cudaMemcpyAsync(found.data(), from, bytes, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  return found;
}

TEST(ShimReduceScatter, CallsInAScopeRunInOneBitInPlaceAndNot) {
  run_nccl_ranks(3, [](NcclRank& here) {
    const auto rank = static_cast<std::size_t>(here.rank);
    const auto expected = simulated(3, 4);
    const Tensor send(4 * 3 * kBlock), separate(4 * kBlock);
    for (std::size_t call = 0; call < 4; ++call) {
      send.write(input_of(rank, call, 3), here.stream);
      void* const own = static_cast<std::byte*>(send.data()) + 4 * rank * kBlock;
      void* const receive = call % 2 == 0 ? own : separate.data();
      EXPECT_EQ(onebitScopeBegin("gradients"), onebitSuccess);
      EXPECT_NCCL(
          ncclReduceScatter(send.data(), receive, kBlock, ncclFloat, ncclAvg, here.comm, here.stream));
      EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
      EXPECT_EQ(read(receive, 4 * kBlock, here.stream), expected[call][rank]) << call;
    }
  });
}

TEST(ShimReduceScatter, CallsWithoutATagOfOtherReductionsAndSmallOnesAreExact) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor send(4 * 2 * kBlock), receive(4 * kBlock);
    const auto x = constant(2 * kBlock, here.rank == 0 ? 1.0F : 2.0F);
    const auto call = [&](std::size_t count, ncclRedOp_t op) {
      send.write(x, here.stream);
      EXPECT_NCCL(
          ncclReduceScatter(send.data(), receive.data(), count, ncclFloat, op, here.comm, here.stream));
      return read(receive.data(), 4 * count, here.stream);
    };
    EXPECT_EQ(call(kBlock, ncclSum), constant(kBlock, 3));
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_EQ(call(kBlock, ncclMax), constant(kBlock, 2));
    EXPECT_EQ(call(100, ncclSum), constant(100, 3)) << "800 bytes of both ranks are below ONEBIT_MIN_SIZE";
    EXPECT_EQ(call(0, ncclSum), constant(0, 0));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
  });
}

TEST(ShimReduceScatter, TheSizeThatRulesSeeIsThatOfAllRanksBlocks) {
  run_nccl_ranks(2, [](NcclRank& here) {
    // 2 x 600 bytes are at least 1 KiB: the results are not the sums.
    const Tensor send(1200), receive(600);
    const auto x = input(DataType::kFloat32, 300, static_cast<std::uint64_t>(here.rank));
    send.write(x, here.stream);
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_NCCL(
        ncclReduceScatter(send.data(), receive.data(), 150, ncclFloat, ncclSum, here.comm, here.stream));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    ScatterSimulation simulation(2, 150, DataType::kFloat32, ReduceOp::kSum, {});
    const auto expected =
        simulation.call({input(DataType::kFloat32, 300, 0), input(DataType::kFloat32, 300, 1)});
    EXPECT_EQ(receive.read(here.stream), expected[static_cast<std::size_t>(here.rank)]);
  });
}

TEST(ShimReduceScatter, CallsOfAGroupGiveTheirResultsBesideAllreducesAndExactOnes) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const auto rank = static_cast<std::size_t>(here.rank);
    const Tensor send(4 * 2 * kBlock), block(4 * kBlock), tensor(4 * kBlock), exact(4 * 2 * kBlock);
    send.write(input_of(rank, 0, 2), here.stream);
    const auto of = [](std::uint64_t number) { return input(DataType::kFloat32, kBlock, 900 + number); };
    tensor.write(of(rank), here.stream);
    exact.write(constant(2 * kBlock, 1), here.stream);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_EQ(onebitScopeBegin("grad.scattered"), onebitSuccess);
    EXPECT_NCCL(
        ncclReduceScatter(send.data(), block.data(), kBlock, ncclFloat, ncclAvg, here.comm, here.stream));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    EXPECT_EQ(onebitScopeBegin("grad.reduced"), onebitSuccess);
    EXPECT_NCCL(
        ncclAllReduce(tensor.data(), tensor.data(), kBlock, ncclFloat, ncclAvg, here.comm, here.stream));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    EXPECT_NCCL(
        ncclReduceScatter(exact.data(), exact.data(), kBlock, ncclFloat, ncclSum, here.comm, here.stream));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(block.read(here.stream), simulated(2, 1)[0][rank]);
    EXPECT_EQ(tensor.read(here.stream),
              Simulation(2, kBlock, DataType::kFloat32, ReduceOp::kAvg, {}).call({of(0), of(1)}));
    if (rank == 0) {
      EXPECT_EQ(read(exact.data(), 4 * kBlock, here.stream), constant(kBlock, 2));
    }
  });
}

TEST(ShimReduceScatter, AHostPointerIsRefused) {
  run_nccl_ranks(2, [](NcclRank& here) {
    std::vector<float> host(2 * kBlock);
    const Tensor receive(4 * kBlock);
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_EQ(
        ncclReduceScatter(host.data(), receive.data(), kBlock, ncclFloat, ncclSum, here.comm, here.stream),
        ncclInvalidArgument);
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
  });
}

}  // namespace
}  // namespace onebit::shim
