// Jobs of several processes under the shim whose ranks do not have the same, or not all that they need. With
// ONEBIT_COMPRESS=all and ONEBIT_MIN_SIZE=1K.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rank_process.h"

namespace onebit::shim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kCount = 20000;

TEST(ShimProcesses, RanksWhoseSettingsDifferGoTheExactWayAndSayInWhat) {
  for (const RankVariable& other :
       {RankVariable{1, "ONEBIT_BLOCK", "512"}, RankVariable{1, "ONEBIT_MIN_SIZE", "1G"},
        RankVariable{1, "ONEBIT_COMPRESS", "size>=1"}}) {
    const auto outcomes = run_rank_processes(3, {other}, [](int rank, int ranks, ncclUniqueId id) {
      return sum_exactly(rank, ranks, id, kCount, 2);
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      EXPECT_THAT(outcome.output, HasSubstr(std::string("rank 1 differs from rank 0 in ") + other.name));
    }
  }
}

TEST(ShimProcesses, ARankWithoutDeviceMemorySendsAllTheExactWay) {
  // 8 MiB of floats and their residuals do not fit beside each other on rank 1.
  const auto outcomes = run_rank_processes(2, {{1, "CUDA_CPU_DEVICE_MEMORY_MIB", "12"}},
                                           [](int rank, int ranks, ncclUniqueId id) {
                                             return sum_exactly(rank, ranks, id, std::size_t{2} << 20, 3);
                                           });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const std::string said = "rank 1 has no device memory left";
    EXPECT_THAT(outcome.output, HasSubstr(said));
    EXPECT_EQ(outcome.output.find(said), outcome.output.rfind(said)) << "once: " << outcome.output;
  }
}

TEST(ShimProcesses, WithoutLibonebitCudaMakingACommunicatorFailsAndNamesTheSetting) {
  const auto outcomes =
      run_rank_processes(2, {{-1, "ONEBIT_CUDA_LIBRARY", "/nowhere/libonebit-cuda.so"}},
                         [](int rank, int ranks, ncclUniqueId id) {
                           ncclComm_t comm = nullptr;
                           return ncclCommInitRank(&comm, ranks, id, rank) == ncclInvalidUsage ? 0 : 1;
                         });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.output, HasSubstr("/nowhere/libonebit-cuda.so"));
    EXPECT_THAT(outcome.output, HasSubstr("set ONEBIT_CUDA_LIBRARY"));
  }
}

TEST(ShimProcesses, ASettingThatCannotBeParsedFailsAndIsNamed) {
  const auto outcomes =
      run_rank_processes(1, {{-1, "ONEBIT_BLOCK", "7"}}, [](int rank, int ranks, ncclUniqueId id) {
        ncclComm_t comm = nullptr;
        return ncclCommInitRank(&comm, ranks, id, rank) == ncclInvalidUsage ? 0 : 1;
      });
  EXPECT_EQ(outcomes[0].status, 0);
  EXPECT_THAT(outcomes[0].output, HasSubstr("ONEBIT_BLOCK=7"));
}

TEST(ShimProcesses, AJobThatEndsWithoutDestroyingItsCommunicatorStillSaysWhatBecameOfIt) {
  const auto outcomes =
      run_rank_processes(2, {{-1, "ONEBIT_DEBUG", "INFO"}}, [](int rank, int ranks, ncclUniqueId id) {
        sum_exactly(rank, ranks, id, kCount, 3, false);
        return 0;
      });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("3 allreduces in 1 bit"));
  }
}

TEST(ShimProcesses, WithoutRulesEveryCallPassesThroughInSilence) {
  const auto outcomes = run_rank_processes(
      2,
      {{-1, "ONEBIT_COMPRESS", ""}, {-1, "ONEBIT_CUDA_LIBRARY", "/nowhere"}, {-1, "ONEBIT_DEBUG", "TRACE"}},
      [](int rank, int ranks, ncclUniqueId id) { return sum_exactly(rank, ranks, id, kCount, 2); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.output, "");
  }
}

TEST(ShimProcesses, TheFirstCallsAreExactWhileWarmingUp) {
  const auto outcomes = run_rank_processes(
      2, {{-1, "ONEBIT_WARMUP_CALLS", "2"}, {-1, "ONEBIT_DEBUG", "INFO"}},
      [](int rank, int ranks, ncclUniqueId id) { return sum_exactly(rank, ranks, id, kCount, 2); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("0 allreduces in 1 bit"));
    EXPECT_THAT(outcome.output, HasSubstr("2 exact"));
  }
}

TEST(ShimProcesses, ACommunicatorOfOneRankIsExact) {
  const auto outcomes = run_rank_processes(
      1, {{-1, "ONEBIT_DEBUG", "INFO"}},
      [](int rank, int ranks, ncclUniqueId id) { return sum_exactly(rank, ranks, id, kCount, 1); });
  EXPECT_EQ(outcomes[0].status, 0) << outcomes[0].output;
  EXPECT_THAT(outcomes[0].output, HasSubstr("one rank"));
}

}  // namespace
}  // namespace onebit::shim
