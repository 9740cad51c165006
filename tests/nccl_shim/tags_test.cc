// Tagged calls of an NCCL job under the shim, with ONEBIT_COMPRESS='tag=grad*' and ONEBIT_MIN_SIZE=1K.
#include <gtest/gtest.h>

#include "job.h"

namespace onebit::shim {
namespace {

constexpr std::size_t kCount = 10007;

std::vector<std::byte> input_of(int rank, std::size_t call) {
  return input(DataType::kFloat32, kCount, 100 * static_cast<std::size_t>(rank) + call);
}

/// What `calls` compressed calls of `ranks` ranks give, one after the other.
std::vector<std::vector<std::byte>> simulated(int ranks, std::size_t calls) {
  Simulation simulation(static_cast<std::size_t>(ranks), kCount, DataType::kFloat32, ReduceOp::kAvg, {});
  std::vector<std::vector<std::byte>> results;
  for (std::size_t call = 0; call < calls; ++call) {
    std::vector<std::vector<std::byte>> inputs;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, call));
    results.push_back(simulation.call(inputs));
  }
  return results;
}

TEST(ShimTags, CallsInAScopeRunInOneBitWithTheResidualsOfTheirTag) {
  run_nccl_ranks(3, [](NcclRank& here) {
    const auto begin = by_name("onebitScopeBegin", &onebitScopeBegin);
    const auto end = by_name("onebitScopeEnd", &onebitScopeEnd);
    const auto expected = simulated(3, 3);
    const Tensor first(4 * kCount), second(4 * kCount);
    for (std::size_t call = 0; call < 3; ++call) {
      EXPECT_EQ(begin("gradients"), onebitSuccess);
      // Another buffer each time: the tag says which tensor it is.
      const Tensor& tensor = call % 2 == 0 ? first : second;
      EXPECT_EQ(all_reduce(here, tensor, input_of(here.rank, call)), expected[call]) << call;
      EXPECT_EQ(end(), onebitSuccess);
    }
  });
}

TEST(ShimTags, CallsOfARegisteredBufferRunInOneBit) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const auto expected = simulated(2, 2);
    const Tensor tensor(4 * kCount);
    const std::string tag = "grad";
    EXPECT_EQ(by_name("onebitTagBuffer", &onebitTagBuffer)(tensor.data(), 4 * kCount, tag.c_str()),
              onebitSuccess);
    for (std::size_t call = 0; call < 2; ++call) {
      EXPECT_EQ(all_reduce(here, tensor, input_of(here.rank, call)), expected[call]) << call;
    }
    EXPECT_EQ(by_name("onebitUntagBuffer", &onebitUntagBuffer)(tensor.data()), onebitSuccess);
    EXPECT_EQ(all_reduce(here, tensor, constant(kCount, 2)), constant(kCount, 2)) << "exact again";
  });
}

TEST(ShimTags, CallsWithoutATagOrWithAnotherAreExact) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor tensor(4 * kCount);
    const auto x = constant(kCount, here.rank == 0 ? 1.0F : 2.0F);
    EXPECT_EQ(all_reduce(here, tensor, x, ncclSum), constant(kCount, 3));
    EXPECT_EQ(onebitScopeBegin("norms"), onebitSuccess);
    EXPECT_EQ(all_reduce(here, tensor, x, ncclSum), constant(kCount, 3));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
  });
}

TEST(ShimTags, TaggedCallsOfOtherReductionsTypesAndSmallOnesAreExact) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor tensor(4 * kCount);
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    const auto x = constant(kCount, here.rank == 0 ? 1.0F : 2.0F);
    EXPECT_EQ(all_reduce(here, tensor, x, ncclMax), constant(kCount, 2));
    EXPECT_EQ(all_reduce(here, tensor, x, ncclProd), constant(kCount, 2));
    const auto few = constant(17, here.rank == 0 ? 1.0F : 2.0F);
    EXPECT_EQ(all_reduce(here, Tensor(4 * 17), few, ncclSum), constant(17, 3));
    EXPECT_NCCL(ncclAllReduce(tensor.data(), tensor.data(), 0, ncclFloat, ncclSum, here.comm, here.stream));
    std::vector<int> numbers(kCount, 5);
    EXPECT_CUDA(
        cudaMemcpyAsync(tensor.data(), numbers.data(), 4 * kCount, cudaMemcpyHostToDevice, here.stream));
    EXPECT_NCCL(
        ncclAllReduce(tensor.data(), tensor.data(), kCount, ncclInt, ncclSum, here.comm, here.stream));
    EXPECT_CUDA(
        cudaMemcpyAsync(numbers.data(), tensor.data(), 4 * kCount, cudaMemcpyDeviceToHost, here.stream));
    EXPECT_CUDA(cudaStreamSynchronize(here.stream));
    EXPECT_EQ(numbers, std::vector<int>(kCount, 10));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
  });
}

TEST(ShimTags, APremultipliedSumIsExact) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor tensor(4 * kCount);
    ncclRedOp_t op;
    float half = 0.5F;
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat, ncclScalarHostImmediate, here.comm));
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_EQ(all_reduce(here, tensor, constant(kCount, 6), op), constant(kCount, 6));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    EXPECT_NCCL(ncclRedOpDestroy(op, here.comm));
  });
}

TEST(ShimTags, ANewCommunicatorAtAnOldAddressStartsWithNoResiduals) {
  const auto expected = simulated(2, 1);
  for (int round = 0; round < 4; ++round) {
    run_nccl_ranks(2, [&](NcclRank& here) {
      const Tensor tensor(4 * kCount);
      EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
      EXPECT_EQ(all_reduce(here, tensor, input_of(here.rank, 0)), expected[0]) << round;
      EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    });
  }
}

TEST(ShimTags, ACommunicatorMadeBySplittingCompressesToo) {
  run_nccl_ranks(4, [](NcclRank& here) {
    ncclComm_t half = nullptr;
    const int color = here.rank == 3 ? NCCL_SPLIT_NOCOLOR : 0;
    EXPECT_NCCL(ncclCommSplit(here.comm, color, here.rank, &half, nullptr));
    if (half == nullptr) return;
    const Tensor tensor(4 * kCount);
    const NcclRank child = {here.rank, 3, half, here.stream};
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_EQ(all_reduce(child, tensor, input_of(here.rank, 0)), simulated(3, 1)[0]);
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    EXPECT_NCCL(ncclCommDestroy(half));
  });
}

TEST(ShimTags, ExactAndCompressedCallsOfOneGroupBothGiveTheirResults) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const Tensor compressed(4 * kCount), exact(4 * kCount);
    compressed.write(input_of(here.rank, 0), here.stream);
    exact.write(constant(kCount, 1), here.stream);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_EQ(onebitScopeBegin("grad"), onebitSuccess);
    EXPECT_NCCL(ncclAllReduce(compressed.data(), compressed.data(), kCount, ncclFloat, ncclAvg, here.comm,
                              here.stream));
    EXPECT_EQ(onebitScopeEnd(), onebitSuccess);
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(
        ncclAllReduce(exact.data(), exact.data(), kCount, ncclFloat, ncclSum, here.comm, here.stream));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(compressed.read(here.stream), simulated(2, 1)[0]);
    EXPECT_EQ(exact.read(here.stream), constant(kCount, 2));
  });
}

TEST(ShimTags, AScopeThatIsNotOpenAndATagThatIsNoneAreRefused) {
  EXPECT_EQ(onebitScopeEnd(), onebitInvalidUsage);
  EXPECT_EQ(onebitScopeBegin(nullptr), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(nullptr, 0, "grad"), onebitInvalidArgument);
}

}  // namespace
}  // namespace onebit::shim
