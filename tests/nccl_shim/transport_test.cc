// Jobs of several processes under the shim whose messages go by TCP instead of NCCL, and what goes wrong
// there: an error that names the rank in bounded time, and a stream that goes on. With ONEBIT_COMPRESS=all,
// ONEBIT_MIN_SIZE=1K, ONEBIT_TRANSPORT=tcp and ONEBIT_SOCKET_IFNAME=lo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "rank_process.h"

namespace onebit::shim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kCount = 40000;

/// A rank of a job that has a communicator.
struct Here {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  bool join(int rank, int ranks, ncclUniqueId id) {
    return ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess &&
           cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
  }
  ncclResult_t reduce(const Tensor& tensor, std::size_t count = kCount) const {
    return ncclAllReduce(tensor.data(), tensor.data(), count, ncclFloat, ncclSum, comm, stream);
  }
  ncclResult_t state() const {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm, &error);
    return result == ncclSuccess ? error : result;
  }
};

bool has_nan(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

/// One good call, then one that rank 1 does not come to; what the others see. 0 if all is as it must be.
int call_without_rank_1(int rank, int ranks, ncclUniqueId id, const std::function<void()>& instead) {
  Here here;
  if (!here.join(rank, ranks, id)) return 2;
  const Tensor tensor(4 * kCount);
  tensor.write(constant(kCount, 1), here.stream);
  if (here.reduce(tensor) != ncclSuccess) return 3;
  if (tensor.read(here.stream) != constant(kCount, static_cast<float>(ranks))) return 4;
  if (rank == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    instead();
    return 0;
  }
  if (here.reduce(tensor) != ncclSuccess) return 5;
  if (!has_nan(tensor.read(here.stream))) return 6;
  if (here.state() != ncclRemoteError) return 7;
  if (here.reduce(tensor) != ncclRemoteError) return 8;
  if (cudaStreamSynchronize(here.stream) != cudaSuccess) return 9;
  return ncclCommAbort(here.comm) == ncclSuccess ? 0 : 10;
}

TEST(ShimTransport, AKilledRankEndsTheCallOnTheOthersWithAnErrorThatNamesIt) {
  const auto outcomes = run_rank_processes(3, {}, [](int rank, int ranks, ncclUniqueId id) {
    return call_without_rank_1(rank, ranks, id, [] { kill(getpid(), SIGKILL); });
  });
  EXPECT_TRUE(WIFSIGNALED(outcomes[1].status));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(outcomes[rank].status, 0) << outcomes[rank].output;
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 1 at 127.0.0.1"));
  }
}

TEST(ShimTransport, ARankThatDoesNotCallIsATimeoutThatNamesIt) {
  const auto outcomes =
      run_rank_processes(3, {{-1, "ONEBIT_TIMEOUT", "700ms"}}, [](int rank, int ranks, ncclUniqueId id) {
        return call_without_rank_1(rank, ranks, id,
                                   [] { std::this_thread::sleep_for(std::chrono::seconds(3)); });
      });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(outcomes[rank].status, 0) << outcomes[rank].output;
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 1 at 127.0.0.1"));
  }
  EXPECT_THAT(outcomes[0].output + outcomes[2].output, HasSubstr("no progress for 700 ms (ONEBIT_TIMEOUT)"));
}

TEST(ShimTransport, ARankThatDoesNotComeToTheFirstCallOfASizeIsATimeoutThatNamesIt) {
  const auto outcomes =
      run_rank_processes(3, {{-1, "ONEBIT_TIMEOUT", "700ms"}}, [](int rank, int ranks, ncclUniqueId id) {
        Here here;
        if (!here.join(rank, ranks, id)) return 2;
        const Tensor tensor(8 * kCount);
        tensor.write(constant(2 * kCount, 1), here.stream);
        if (here.reduce(tensor) != ncclSuccess || cudaStreamSynchronize(here.stream) != cudaSuccess) return 3;
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(3));
          return 0;
        }
        // The ranks tell each other whether they have memory for it.
        const bool failed = here.reduce(tensor, 2 * kCount) == ncclRemoteError;
        return failed && ncclCommAbort(here.comm) == ncclSuccess ? 0 : 4;
      });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(outcomes[rank].status, 0) << outcomes[rank].output;
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 1 at 127.0.0.1"));
  }
}

TEST(ShimTransport, ARankThatEndsBetweenCallsIsAnErrorOfTheNextOneAndNoNewsBefore) {
  const auto outcomes = run_rank_processes(2, {}, [](int rank, int ranks, ncclUniqueId id) {
    Here here;
    if (!here.join(rank, ranks, id)) return 2;
    const Tensor tensor(4 * kCount);
    tensor.write(constant(kCount, 1), here.stream);
    if (here.reduce(tensor) != ncclSuccess) return 3;
    if (tensor.read(here.stream) != constant(kCount, 2)) return 4;
    if (rank == 1) return 0;
    for (int i = 0; i < 10'000 && here.state() == ncclSuccess; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (here.state() != ncclRemoteError) return 5;
    std::fputs("before the next call\n", stderr);
    return here.reduce(tensor) == ncclRemoteError && ncclCommAbort(here.comm) == ncclSuccess ? 0 : 6;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
  const std::string& output = outcomes[0].output;
  EXPECT_THAT(output.substr(0, output.find("before the next call")), Not(HasSubstr("rank 1")));
  EXPECT_THAT(output, HasSubstr("rank 1 at 127.0.0.1"));
}

TEST(ShimTransport, WhatHasComeFromARankThatHasEndedSinceIsGood) {
  // Rank 0's stream is late: rank 1 is gone before it copies the last messages in.
  const auto outcomes =
      run_rank_processes(2, {{0, "CUDA_CPU_DELAY_US", "20000"}}, [](int rank, int ranks, ncclUniqueId id) {
        Here here;
        if (!here.join(rank, ranks, id)) return 2;
        const Tensor tensor(4 * kCount);
        tensor.write(constant(kCount, 1), here.stream);
        if (here.reduce(tensor) != ncclSuccess) return 3;
        return tensor.read(here.stream) == constant(kCount, 2) ? 0 : 4;
      });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ShimTransport, RanksThatDoNotMakeTheSameCallsGetAnError) {
  const auto outcomes =
      run_rank_processes(2, {{-1, "ONEBIT_TIMEOUT", "5s"}}, [](int rank, int ranks, ncclUniqueId id) {
        Here here;
        if (!here.join(rank, ranks, id)) return 2;
        const Tensor tensor(4 * kCount);
        tensor.write(constant(kCount, 1), here.stream);
        if (here.reduce(tensor, rank == 0 ? kCount : kCount / 2) != ncclSuccess) return 3;
        if (!has_nan(tensor.read(here.stream))) return 4;
        const bool failed = here.state() != ncclSuccess && here.reduce(tensor) != ncclSuccess;
        return failed && ncclCommAbort(here.comm) == ncclSuccess ? 0 : 5;
      });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ShimTransport, ARankWithoutTheTransportIsAnErrorOnAllRanksWhenTheCommunicatorIsMade) {
  const auto outcomes = run_rank_processes(
      3, {{1, "ONEBIT_SOCKET_IFNAME", "nosuchinterface"}}, [](int rank, int ranks, ncclUniqueId id) {
        ncclComm_t comm = nullptr;
        return ncclCommInitRank(&comm, ranks, id, rank) == ncclSystemError && comm == nullptr ? 0 : 1;
      });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcomes[1].output, HasSubstr("nosuchinterface"));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}})
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 1 could not"));
}

TEST(ShimTransport, RanksWithDifferentTransportsGoTheExactWayAndSaySo) {
  const auto outcomes = run_rank_processes(
      2, {{1, "ONEBIT_TRANSPORT", "nccl"}},
      [](int rank, int ranks, ncclUniqueId id) { return sum_exactly(rank, ranks, id, kCount, 2); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("rank 1 differs from rank 0 in ONEBIT_TRANSPORT"));
  }
}

TEST(ShimTransport, AnAbortEndsACallWhosePeerDoesNotComeAndItsStreamGoesOn) {
  const auto outcomes = run_rank_processes(2, {}, [](int rank, int ranks, ncclUniqueId id) {
    Here here;
    if (!here.join(rank, ranks, id)) return 2;
    const Tensor tensor(4 * kCount);
    tensor.write(constant(kCount, 1), here.stream);
    if (here.reduce(tensor) != ncclSuccess || cudaStreamSynchronize(here.stream) != cudaSuccess) return 3;
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    } else {
      if (here.reduce(tensor) != ncclSuccess) return 4;
      if (ncclCommAbort(here.comm) != ncclSuccess) return 5;
      return has_nan(tensor.read(here.stream)) ? 0 : 6;
    }
    return ncclCommAbort(here.comm) == ncclSuccess ? 0 : 7;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ShimTransport, AJobThatEndsInTheMiddleOfACallEndsInTime) {
  const auto outcomes = run_rank_processes(2, {}, [](int rank, int ranks, ncclUniqueId id) {
    Here here;
    if (!here.join(rank, ranks, id)) return 2;
    const auto* const tensor = new Tensor(4 * kCount);  // its stream is not over at the end
    tensor->write(constant(kCount, 1), here.stream);
    if (here.reduce(*tensor) != ncclSuccess || cudaStreamSynchronize(here.stream) != cudaSuccess) return 3;
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(4));
      return 0;
    }
    return here.reduce(*tensor) == ncclSuccess ? 0 : 4;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ShimTransport, AForkedChildEndsWithoutHarm) {
  const auto outcomes = run_rank_processes(2, {}, [](int rank, int ranks, ncclUniqueId id) {
    Here here;
    if (!here.join(rank, ranks, id)) return 2;
    const Tensor tensor(4 * kCount);
    for (int call = 0; call < 2; ++call) {
      tensor.write(constant(kCount, 1), here.stream);
      if (here.reduce(tensor) != ncclSuccess) return 3;
      if (tensor.read(here.stream) != constant(kCount, 2)) return 4;
      const pid_t child = fork();
      if (child == 0) std::exit(0);
      int status = -1;
      if (waitpid(child, &status, 0) != child || status != 0) return 5;
    }
    return ncclCommDestroy(here.comm) == ncclSuccess ? 0 : 6;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(ShimTransport, RanksThatShareNodesReduceInTwoLevelsWithMessagesByTheTransportBetweenThem) {
  std::vector<RankVariable> variables = {{-1, "ONEBIT_DEBUG", "INFO"}};
  for (const int rank : {0, 1, 2, 3})
    variables.push_back({rank, "NCCL_HOSTID", rank < 2 ? "first" : "second"});
  const auto outcomes = run_rank_processes(4, variables, [](int rank, int ranks, ncclUniqueId id) {
    return sum_exactly(rank, ranks, id, kCount, 2);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("a rank of node"));
    EXPECT_THAT(outcome.output, HasSubstr("messages by tcp"));
    EXPECT_THAT(outcome.output, HasSubstr("2 calls in 1 bit"));
  }
}

}  // namespace
}  // namespace onebit::shim
