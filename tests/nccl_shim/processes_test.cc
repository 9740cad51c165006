// Jobs of several processes under the shim whose ranks do not have the same, or not all that they need. With
// ONEBIT_COMPRESS=all and ONEBIT_MIN_SIZE=1K.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "rank_process.h"
#include "unique_id.h"

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

/// What a rank gets from making a communicator when another one cannot have it.
int make_communicator(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRank(&comm, ranks, id, rank);
  return static_cast<int>(result);
}

TEST(ShimProcesses, ARankWithoutTheShimIsRefusedWhenItMakesACommunicator) {
  // NCCL's own wait for a rank that failed ends, since the stand-in gives up some time.
  const auto outcomes =
      run_rank_processes(3, {{-1, "CUDA_CPU_NCCL_TIMEOUT", "1"}}, [](int rank, int ranks, ncclUniqueId id) {
        if (rank != 1) return make_communicator(rank, ranks, id);
        ncclComm_t comm = nullptr;
        return pncclCommInitRank(&comm, ranks, id, rank) == ncclInternalError ? 0 : 1;
      });
  EXPECT_EQ(outcomes[1].status, 0);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(WEXITSTATUS(outcomes[rank].status), ncclSystemError) << outcomes[rank].output;
  }
}

TEST(ShimProcesses, ARankWithTheShimButWithoutRulesIsRefusedAndToldWhy) {
  const auto outcomes = run_rank_processes(
      2, {{-1, "CUDA_CPU_NCCL_TIMEOUT", "1"}, {1, "ONEBIT_COMPRESS", ""}}, make_communicator);
  EXPECT_EQ(WEXITSTATUS(outcomes[0].status), ncclSystemError);
  EXPECT_EQ(WEXITSTATUS(outcomes[1].status), ncclInvalidUsage);
  EXPECT_THAT(outcomes[1].output, HasSubstr("ONEBIT_COMPRESS set and this one has not"));
}

TEST(ShimProcesses, WhereTheRankThatMadeTheIdHasNoShimAllGoTheExactWayAndSaySo) {
  const auto outcomes = run_rank_processes(
      3, {{0, "ONEBIT_COMPRESS", ""}},
      [](int rank, int ranks, ncclUniqueId id) { return sum_exactly(rank, ranks, id, kCount, 2); });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcomes[0].output, "");
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
    const std::string said = "the process that made its unique id does not have libonebit-nccl.so";
    EXPECT_THAT(outcomes[rank].output, HasSubstr(said));
    EXPECT_EQ(outcomes[rank].output.find(said), outcomes[rank].output.rfind(said)) << "once";
  }
}

TEST(ShimProcesses, ARankThatDoesNotComeToCompareSettingsIsAnErrorOnTheOthersInTime) {
  const auto outcomes =
      run_rank_processes(3, {{-1, "ONEBIT_INIT_TIMEOUT", "500ms"}}, [](int rank, int ranks, ncclUniqueId id) {
        ncclComm_t comm = nullptr;
        if (rank != 1) {
          const ncclResult_t result = ncclCommInitRank(&comm, ranks, id, rank);
          return result == ncclSystemError && comm == nullptr ? 0 : 1;
        }
        UniqueId own;
        std::memcpy(&own, &id, sizeof own);
        own = opened(own);
        std::memcpy(&id, &own, sizeof own);
        if (pncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) return 2;
        std::this_thread::sleep_for(std::chrono::seconds(2));
        return 0;
      });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_THAT(outcomes[rank].output, HasSubstr("not all ranks told their settings within 0.5 s"));
  }
}

TEST(ShimProcesses, ARankThatFailsBeforeSettingsAreComparedIsAnErrorOnTheOthers) {
  const auto outcomes = run_rank_processes(
      2, {{1, "CUDA_CPU_DEVICE_MEMORY_MIB", "1"}}, [](int rank, int ranks, ncclUniqueId id) {
        void* all = nullptr;
        if (rank == 1 && cudaMalloc(&all, std::size_t{1} << 20) != cudaSuccess) return 98;
        return make_communicator(rank, ranks, id);
      });
  EXPECT_EQ(WEXITSTATUS(outcomes[0].status), ncclRemoteError) << outcomes[0].output;
  EXPECT_EQ(WEXITSTATUS(outcomes[1].status), ncclSystemError);
  EXPECT_THAT(outcomes[1].output, HasSubstr("of memory left"));
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
    EXPECT_THAT(outcome.output, HasSubstr("3 calls in 1 bit"));
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
    EXPECT_THAT(outcome.output, HasSubstr("0 calls in 1 bit"));
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
