// Wrong arguments, aborts, and communicators that several threads use: a clear error for the one who errs,
// and nobody else disturbed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"
#include "support/sanitizers.h"

namespace onebit::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

#define EXPECT_INVALID_ARGUMENT(call, word)                    \
  do {                                                         \
    EXPECT_EQ(call, onebitInvalidArgument);                    \
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr(word)); \
  } while (false)

TEST(Init, RefusesRanksAndSizesOutOfRange) {
  ::setenv("ONEBIT_SOCKET_IFNAME", "lo", 1);
  onebitUniqueId id;
  ASSERT_TRUE(succeeded(onebitGetUniqueId(&id)));
  for (const auto& [ranks, rank] :
       {std::pair<int, int>{0, 0}, {-1, 0}, {2, 2}, {2, -1}, {1, 1}, {1, 1 << 30}}) {
    auto* comm = reinterpret_cast<onebitComm_t>(&id);
    EXPECT_INVALID_ARGUMENT(onebitCommInitRank(&comm, ranks, id, rank), "rank");
    EXPECT_EQ(comm, nullptr);
  }
  onebitComm_t comm = nullptr;
  EXPECT_INVALID_ARGUMENT(onebitCommInitRank(nullptr, 1, id, 0), "comm");
  EXPECT_INVALID_ARGUMENT(onebitGetUniqueId(nullptr), "id");
  onebitConfig_t config = ONEBIT_CONFIG_INITIALIZER;
  config.size = 3;
  EXPECT_INVALID_ARGUMENT(onebitCommInitRankConfig(&comm, 1, id, 0, &config), "ONEBIT_CONFIG_INITIALIZER");
  onebitUniqueId zeros{};
  EXPECT_NE(onebitCommInitRank(&comm, 1, zeros, 0), onebitSuccess);
  EXPECT_EQ(comm, nullptr);
}

TEST(Arguments, ThatAreWrongAreNamedAndTheCommunicatorStaysUsable) {
  run_ranks(2, [](int, onebitComm_t comm) {
    std::vector<double> buffer(64);
    void* const x = buffer.data();
    void* const odd = static_cast<char*>(x) + 1;
    void* const inside = static_cast<char*>(x) + 16;
    const auto reduce = [&](const void* send, void* receive, int type, int op, void* stream,
                            const char* tag = nullptr) {
      return onebitAllReduce(send, receive, 8, static_cast<onebitDataType_t>(type),
                             static_cast<onebitRedOp_t>(op), tag, comm, stream);
    };
    EXPECT_INVALID_ARGUMENT(reduce(nullptr, x, onebitFloat32, onebitSum, nullptr), "sendbuff");
    EXPECT_INVALID_ARGUMENT(reduce(x, nullptr, onebitFloat32, onebitSum, nullptr), "recvbuff");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, onebitFloat32, onebitSum, x), "stream");
    EXPECT_INVALID_ARGUMENT(reduce(odd, x, onebitFloat32, onebitSum, nullptr), "sendbuff must be aligned");
    EXPECT_INVALID_ARGUMENT(reduce(x, odd, onebitFloat16, onebitSum, nullptr), "recvbuff must be aligned");
    EXPECT_INVALID_ARGUMENT(reduce(x, inside, onebitFloat32, onebitSum, nullptr), "overlap");
    EXPECT_INVALID_ARGUMENT(reduce(inside, x, onebitFloat32, onebitSum, nullptr, "g"), "overlap");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, onebitUint8, onebitSum, nullptr), "onebitUint8");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, 3, onebitSum, nullptr), "datatype 3");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, -1, onebitSum, nullptr), "datatype -1");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, onebitFloat32, 2, nullptr), "op 2");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, onebitInt32, onebitAvg, nullptr), "onebitAvg");
    EXPECT_INVALID_ARGUMENT(reduce(x, x, onebitInt64, onebitAvg, nullptr, "g"), "onebitAvg");
    EXPECT_INVALID_ARGUMENT(onebitAllReduce(x, x, SIZE_MAX, onebitFloat32, onebitSum, nullptr, comm, nullptr),
                            "count");
    EXPECT_INVALID_ARGUMENT(
        onebitAllReduce(x, x, SIZE_MAX / 4 + 2, onebitFloat32, onebitSum, nullptr, comm, nullptr), "count");
    EXPECT_INVALID_ARGUMENT(onebitAllReduce(x, x, 8, onebitFloat32, onebitSum, nullptr, nullptr, nullptr),
                            "comm");
    EXPECT_INVALID_ARGUMENT(onebitBroadcast(x, x, 8, onebitFloat32, 2, comm, nullptr), "root 2");
    EXPECT_INVALID_ARGUMENT(onebitBroadcast(x, x, 8, onebitFloat32, -1, comm, nullptr), "root -1");
    EXPECT_INVALID_ARGUMENT(onebitBroadcast(x, nullptr, 8, onebitFloat32, 0, comm, nullptr),
                            "must not be NULL");
    EXPECT_INVALID_ARGUMENT(onebitBroadcast(x, x, 8, onebitFloat32, 0, comm, x), "stream");
    EXPECT_INVALID_ARGUMENT(onebitAllGather(nullptr, x, 8, onebitFloat32, comm, nullptr), "sendbuff");
    EXPECT_INVALID_ARGUMENT(onebitAllGather(x, nullptr, 8, onebitFloat32, comm, nullptr), "recvbuff");
    EXPECT_INVALID_ARGUMENT(onebitAllGather(inside, x, 8, onebitFloat32, comm, nullptr), "overlap");
    EXPECT_INVALID_ARGUMENT(onebitBarrier(nullptr), "comm");
    EXPECT_INVALID_ARGUMENT(onebitCommAbort(nullptr), "comm");
    EXPECT_INVALID_ARGUMENT(onebitCommCount(comm, nullptr), "count");
    EXPECT_INVALID_ARGUMENT(onebitCommUserRank(nullptr, nullptr), "comm");
    EXPECT_INVALID_ARGUMENT(onebitCommGetStats(comm, nullptr), "stats");
    EXPECT_INVALID_ARGUMENT(onebitCommGetAsyncError(comm, nullptr), "result");
    EXPECT_INVALID_ARGUMENT(onebitResidualSave(comm, nullptr), "directory");
    EXPECT_INVALID_ARGUMENT(onebitResidualLoad(nullptr, "/tmp"), "comm");
    EXPECT_INVALID_ARGUMENT(onebitResidualMemory(comm, nullptr, nullptr), "bytes");
    EXPECT_INVALID_ARGUMENT(onebitResidualNorm(comm, nullptr, nullptr, nullptr), "worker");
    EXPECT_TRUE(succeeded(onebitCommDestroy(nullptr)));
    EXPECT_TRUE(
        succeeded(onebitAllReduce(nullptr, nullptr, 0, onebitFloat32, onebitSum, nullptr, comm, nullptr)));
    std::vector<float> ones(8, 1.0F);
    ASSERT_TRUE(succeeded(
        onebitAllReduce(ones.data(), ones.data(), 8, onebitFloat32, onebitSum, nullptr, comm, nullptr)));
    EXPECT_EQ(ones[7], 2.0F);
  });
}

TEST(Arguments, AdjacentBuffersDoNotOverlap) {
  run_ranks(2, [](int, onebitComm_t comm) {
    std::vector<float> x(16, 1.0F);
    ASSERT_TRUE(succeeded(
        onebitAllReduce(x.data(), x.data() + 8, 8, onebitFloat32, onebitSum, nullptr, comm, nullptr)));
    EXPECT_EQ(x[15], 2.0F);
    ASSERT_TRUE(
        succeeded(onebitAllReduce(x.data() + 8, x.data(), 8, onebitFloat32, onebitSum, "g", comm, nullptr)));
  });
}

/// What onebitAllReduce comes to with a buffer that nobody touches before the error.
onebitResult_t wait_in(onebitComm_t comm, const char* tag, std::size_t count = 300'000) {
  std::vector<float> x(count, 1.0F);
  return onebitAllReduce(x.data(), x.data(), count, onebitFloat32, onebitSum, tag, comm, nullptr);
}

TEST(Abort, FromAnotherThreadEndsTheCallInProgressAndTellsThePeers) {
  for (const char* tag : {"", "g"}) {
    std::latch aborted(1);
    run_ranks(3,
              [&](int rank, onebitComm_t comm) {
                if (rank == 2) {  // does not come until the others have waited
                  aborted.wait();
                }
                std::thread aborter;
                if (rank == 1) {
                  aborter = std::thread([&] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(200));
                    EXPECT_TRUE(succeeded(onebitCommAbort(comm)));
                    aborted.count_down();
                  });
                }
                const auto start = Clock::now();
                const auto result = wait_in(comm, tag);
                EXPECT_LT(Clock::now() - start, std::chrono::seconds(8)) << "rank " << rank;
                const std::string words = onebitGetLastError(comm);
                if (rank == 1) {
                  EXPECT_EQ(result, onebitAborted);
                  EXPECT_THAT(words, HasSubstr("onebitCommAbort"));
                  onebitResult_t asynchronous = onebitSuccess;
                  EXPECT_TRUE(succeeded(onebitCommGetAsyncError(comm, &asynchronous)));
                  EXPECT_EQ(asynchronous, onebitAborted);
                  EXPECT_EQ(onebitBarrier(comm), onebitAborted);
                  aborter.join();
                } else {
                  EXPECT_NE(result, onebitSuccess);
                  EXPECT_THAT(words, HasSubstr("rank 1"));
                }
              },
              {"ONEBIT_MIN_SIZE=0"});
  }
}

TEST(Abort, BetweenCallsFailsTheNextOneAndTellsThePeersAtTheEndAtTheLatest) {
  run_ranks(2, [&](int rank, onebitComm_t comm) {
    EXPECT_TRUE(succeeded(onebitBarrier(comm)));
    if (rank == 0) {
      EXPECT_TRUE(succeeded(onebitCommAbort(comm)));
      EXPECT_TRUE(succeeded(onebitCommAbort(comm)));
      return;  // and destroys
    }
    const auto start = Clock::now();
    EXPECT_NE(onebitBarrier(comm), onebitSuccess);
    EXPECT_THAT(onebitGetLastError(comm), HasSubstr("rank 0"));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
  });
}

TEST(Abort, OutsideACallTellsThePeersThatWaitAtOnce) {
  std::atomic<bool> told{false};
  run_ranks(2, [&](int rank, onebitComm_t comm) {
    EXPECT_TRUE(succeeded(onebitBarrier(comm)));
    if (rank == 0) {
      EXPECT_TRUE(succeeded(onebitCommAbort(comm)));
      const auto patience = Clock::now() + std::chrono::seconds(15);  // before it destroys
      while (!told && Clock::now() < patience) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_TRUE(told);
      return;
    }
    EXPECT_EQ(onebitBarrier(comm), onebitRemoteError);
    EXPECT_THAT(onebitGetLastError(nullptr), AllOf(HasSubstr("rank 0"), HasSubstr("onebitCommAbort")));
    told = true;
  });
}

TEST(LastError, OfACommunicatorIsItsOwn) {
  run_ranks(1, [&](int, onebitComm_t broken) {
    run_ranks(1, [&](int, onebitComm_t healthy) {
      EXPECT_TRUE(succeeded(onebitCommAbort(broken)));
      EXPECT_THAT(onebitGetLastError(broken), HasSubstr("onebitCommAbort"));
      EXPECT_STREQ(onebitGetLastError(healthy), "");
    });
  });
}

TEST(TwoThreads, TheSecondIsRefusedAndTheFirstNotDisturbed) {
  std::atomic<bool> tried{false};
  run_ranks(
      2,
      [&](int rank, onebitComm_t comm) {
        EXPECT_TRUE(succeeded(onebitBarrier(comm)));
        if (rank == 1) {  // keeps rank 0 waiting until its second thread has tried
          while (!tried) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::thread second;
        if (rank == 0) {
          second = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the first is in its call by now
            EXPECT_EQ(wait_in(comm, "g"), onebitInvalidUsage);
            EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("another thread"));
            EXPECT_EQ(onebitBarrier(comm), onebitInvalidUsage);
            EXPECT_EQ(onebitResidualReset(comm, nullptr), onebitInvalidUsage);
            EXPECT_EQ(onebitResidualSave(comm, "/tmp"), onebitInvalidUsage);
            EXPECT_EQ(onebitResidualLoad(comm, "/tmp"), onebitInvalidUsage);
            std::size_t bytes = 0;
            EXPECT_EQ(onebitResidualMemory(comm, nullptr, &bytes), onebitInvalidUsage);
            double worker = 0;
            double owner = 0;
            EXPECT_EQ(onebitResidualNorm(comm, nullptr, &worker, &owner), onebitInvalidUsage);
            onebitStats_t stats{};
            stats.size = sizeof stats;
            EXPECT_EQ(onebitCommGetStats(comm, &stats), onebitInvalidUsage);
            tried = true;
          });
        }
        std::vector<float> x(300'000, 1.0F);
        EXPECT_TRUE(succeeded(
            onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitSum, "g", comm, nullptr)));
        EXPECT_EQ(x.back(), 2.0F);
        if (second.joinable()) second.join();
        EXPECT_TRUE(succeeded(onebitBarrier(comm)));
      },
      {"ONEBIT_MIN_SIZE=0"});
}

TEST(TwoThreads, InTurnMayUseOneCommunicator) {
  run_ranks(2, [](int, onebitComm_t comm) {
    for (int i = 0; i < 4; ++i) {
      std::thread([&] { EXPECT_EQ(wait_in(comm, "g"), onebitSuccess); }).join();
    }
  });
}

TEST(OutOfMemory, IsAnErrorAndAtThePeersOneThatNamesTheRank) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer ends the program at an allocation that is too large";
  run_ranks(2,
            [](int rank, onebitComm_t comm) {
              float x = 0;
              // Nobody has room for residuals of 2^45 elements; the buffers are not touched before.
              const auto start = Clock::now();
              if (rank == 0) {
                EXPECT_EQ(onebitAllReduce(&x, &x, std::size_t{1} << 45, onebitFloat32, onebitSum, "g", comm,
                                          nullptr),
                          onebitSystemError);
                EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("memory"));
              } else {
                EXPECT_NE(wait_in(comm, "g"), onebitSuccess);
                EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("rank 0"));
              }
              EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
            },
            {"ONEBIT_MIN_SIZE=0"});
}

TEST(Stats, CountWhatWasCalled) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              int count = 0;
              int rank = -1;
              EXPECT_TRUE(succeeded(onebitCommCount(comm, &count)));
              EXPECT_TRUE(succeeded(onebitCommUserRank(comm, &rank)));
              EXPECT_EQ(count, 2);
              EXPECT_TRUE(rank == 0 || rank == 1);
              ASSERT_EQ(wait_in(comm, "g", 1000), onebitSuccess);
              ASSERT_EQ(wait_in(comm, "", 2000), onebitSuccess);
              ASSERT_EQ(wait_in(comm, "", 3000), onebitSuccess);
              onebitStats_t stats{};
              stats.size = sizeof stats;
              ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &stats)));
              EXPECT_EQ(stats.compressed_calls, 1U);
              EXPECT_EQ(stats.exact_calls, 2U);
              EXPECT_EQ(stats.reduced_bytes, 24'000U);
              EXPECT_GT(stats.wire_bytes_sent, 10'000U);
              EXPECT_GT(stats.wire_bytes_received, 10'000U);
              EXPECT_GT(stats.encode_ns, 0U);
              EXPECT_GT(stats.average_ns, 0U);
              EXPECT_GT(stats.decode_ns, 0U);
              // Computed in the calling thread: what it did and what it waited for are the call.
              EXPECT_LE(stats.encode_ns + stats.average_ns + stats.decode_ns + stats.waiting_ns,
                        stats.compressed_ns);
              const std::uint64_t before = stats.compressed_ns;
              ASSERT_EQ(wait_in(comm, "", 4000), onebitSuccess);
              ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &stats)));
              EXPECT_EQ(stats.compressed_ns, before);
              onebitStats_t old{};
              old.size =
                  offsetof(onebitStats_t, reduced_bytes);  // a caller that was built with fewer counters
              old.reduced_bytes = 77;
              ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &old)));
              EXPECT_EQ(old.exact_calls, 3U);
              EXPECT_EQ(old.reduced_bytes, 77U);
            },
            {"ONEBIT_MIN_SIZE=0"});
}

TEST(ResidualNorm, IsWhatTheEncodingLost) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              // Each block's scale is sqrt(5), so each element keeps 1 - sqrt(5) or 3 - sqrt(5); the mean of
              // equal pieces is coded without loss.
              std::vector<float> x(1024);
              for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 1.0F : 3.0F;
              ASSERT_TRUE(succeeded(onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg,
                                                    "g", comm, nullptr)));
              const double low = 1 - std::sqrt(5.0);
              const double high = 3 - std::sqrt(5.0);
              for (const char* tag : {"g", static_cast<const char*>(nullptr)}) {
                double worker = -1;
                double owner = -1;
                ASSERT_TRUE(succeeded(onebitResidualNorm(comm, tag, &worker, &owner)));
                EXPECT_NEAR(worker, std::sqrt(512 * (low * low + high * high)), 1e-4);
                EXPECT_NEAR(owner, 0, 1e-4);
              }
              double worker = -1;
              double owner = -1;
              ASSERT_TRUE(succeeded(onebitResidualNorm(comm, "of no call", &worker, &owner)));
              EXPECT_EQ(worker, 0);
              EXPECT_EQ(owner, 0);
            },
            {"ONEBIT_MIN_SIZE=0"});
}

}  // namespace
}  // namespace onebit::testing
