// The 1-bit allreduce against a simulation of all ranks by the scalar reference codec: the same bytes, call
// after call.

#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <tuple>
#include <vector>

#include "support/ranks.h"
#include "support/simulation.h"

namespace onebit::testing {
namespace {

struct Case {
  int ranks;
  std::size_t count;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kAvg;
  std::uint32_t block = 2048;
  bool mean = false;
  std::string more = "";
};

void expect_simulated(const Case& c) {
  SCOPED_TRACE(formatted("{} ranks, {} x {} {}, block {}, mean {}, {}", c.ranks, c.count, name_of(c.type),
                         name_of(c.op), c.block, c.mean, c.more));
  constexpr int kCalls = 4;
  const auto ranks = static_cast<std::size_t>(c.ranks);
  std::vector<std::vector<std::byte>> expected;
  std::vector<std::vector<std::vector<std::byte>>> inputs(kCalls);
  Simulation simulation(ranks, c.count, c.type, c.op,
                        {c.block, c.mean ? codec::Scale::kMean : codec::Scale::kRms});
  for (int call = 0; call < kCalls; ++call) {
    for (std::size_t r = 0; r < ranks; ++r) inputs[call].push_back(input(c.type, c.count, 1000 * r + call));
    expected.push_back(simulation.call(inputs[call]));
  }
  RankOptions options;
  options.settings =
      formatted("ONEBIT_MIN_SIZE=0\nONEBIT_BLOCK={}\nONEBIT_SCALE={}\n{}",
                c.block == 0 ? "whole" : std::to_string(c.block), c.mean ? "mean" : "rms", c.more);
  run_ranks(
      c.ranks,
      [&](int rank, onebitComm_t comm) {
        for (int call = 0; call < kCalls; ++call) {
          std::vector<std::byte> send = inputs[call][rank];
          std::vector<std::byte> receive(send.size());
          std::byte* out = call % 2 == 0 ? receive.data() : send.data();  // out of place and in place in turn
          ASSERT_TRUE(
              succeeded(onebitAllReduce(send.data(), out, c.count, static_cast<onebitDataType_t>(c.type),
                                        static_cast<onebitRedOp_t>(c.op), "gradient", comm, nullptr)));
          ASSERT_EQ(std::memcmp(out, expected[call].data(), expected[call].size()), 0) << "call " << call;
        }
        onebitStats_t stats{};
        stats.size = sizeof stats;
        ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &stats)));
        ASSERT_EQ(stats.compressed_calls, static_cast<std::uint64_t>(kCalls));
      },
      options);
}

TEST(OneBit, EveryNumberOfRanksGivesTheSimulatedBytes) {
  for (const int ranks : {2, 3, 7, 8}) expect_simulated({ranks, 100'003});
}

TEST(OneBit, EveryCountGivesTheSimulatedBytes) {
  for (const std::size_t count : {1, 2, 7, 8, 9, 31, 2047, 2049, 6143, 65'536, 300'007})
    expect_simulated({3, count});
}

TEST(OneBit, EveryTypeAndOpGivesTheSimulatedBytes) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) expect_simulated({3, 50'021, type, op});
  }
}

TEST(OneBit, EveryBlockAndScaleGivesTheSimulatedBytes) {
  for (const std::uint32_t block : {0U, 256U, 65536U}) {
    for (const bool mean : {false, true}) {
      expect_simulated({3, 200'003, DataType::kFloat32, ReduceOp::kAvg, block, mean});
    }
  }
}

TEST(OneBit, ChunksThreadsAndDepthDoNotChangeTheBytes) {
  for (const std::string more :
       {"ONEBIT_CHUNK=2048\nONEBIT_PIPELINE_DEPTH=1", "ONEBIT_CHUNK=4096\nONEBIT_THREADS=4",
        "ONEBIT_CHUNK=1\nONEBIT_PIPELINE_DEPTH=64\nONEBIT_THREADS=3\nONEBIT_TCP_FLOWS=4",
        "ONEBIT_CODEC_IMPL=scalar"}) {
    expect_simulated({4, 300'007, DataType::kFloat32, ReduceOp::kAvg, 2048, false, more});
    expect_simulated({4, 300'007, DataType::kFloat32, ReduceOp::kSum, 0, true, more});
  }
}

TEST(OneBit, TheErrorOfTheAccumulatedSumFallsAsOneOverTheCalls) {
  constexpr std::size_t kCount = 40'000;
  constexpr int kRanks = 4;
  std::vector<double> error_at;
  run_ranks(kRanks,
            [&](int rank, onebitComm_t comm) {
              std::vector<std::vector<float>> fixed(kRanks, std::vector<float>(kCount));
              for (int r = 0; r < kRanks; ++r) {
                Random random(static_cast<std::uint64_t>(r) + 1);
                for (float& x : fixed[r]) x = random.unit();
              }
              std::vector<double> sum(kCount);
              std::vector<float> y(kCount);
              for (int call = 1; call <= 100; ++call) {
                ASSERT_TRUE(succeeded(onebitAllReduce(fixed[rank].data(), y.data(), kCount, onebitFloat32,
                                                      onebitAvg, "g", comm, nullptr)));
                for (std::size_t i = 0; i < kCount; ++i) sum[i] += y[i];
                if (rank != 0 || (call != 1 && call != 10 && call != 100)) continue;
                double wrong = 0;
                double right = 0;
                for (std::size_t i = 0; i < kCount; ++i) {
                  double exact = 0;
                  for (int r = 0; r < kRanks; ++r) exact += fixed[r][i] / static_cast<double>(kRanks);
                  wrong += std::pow(sum[i] / call - exact, 2);
                  right += exact * exact;
                }
                error_at.push_back(std::sqrt(wrong / right));
              }
            },
            {"ONEBIT_MIN_SIZE=0\n"});
  ASSERT_EQ(error_at.size(), 3U);
  EXPECT_LT(error_at[1], error_at[0] / 4);
  EXPECT_LT(error_at[2], error_at[1] / 4);
}

TEST(OneBit, ANonFiniteElementPoisonsItsBlockEverywhereAndTheNextCallIsClean) {
  constexpr std::size_t kCount = 50'000;
  run_ranks(3,
            [&](int rank, onebitComm_t comm) {
              std::vector<float> x(kCount, 1.0F);
              std::vector<float> y(kCount);
              if (rank == 1) x[20'000] = std::numeric_limits<float>::infinity();
              ASSERT_TRUE(succeeded(
                  onebitAllReduce(x.data(), y.data(), kCount, onebitFloat32, onebitAvg, "g", comm, nullptr)));
              EXPECT_TRUE(std::isnan(y[20'000]));
              EXPECT_EQ(y[0], 1.0F);
              EXPECT_EQ(y[kCount - 1], 1.0F);
              x[20'000] = 1.0F;
              ASSERT_TRUE(succeeded(
                  onebitAllReduce(x.data(), y.data(), kCount, onebitFloat32, onebitAvg, "g", comm, nullptr)));
              for (const float each : y) ASSERT_EQ(each, 1.0F);
            },
            {"ONEBIT_MIN_SIZE=0\n"});
}

TEST(OneBit, TheBytesOnTheWireFollowTheFormula) {
  constexpr std::size_t kCount = 4'000'000;
  constexpr double kRanks = 4;
  run_ranks(4, [&](int, onebitComm_t comm) {
    std::vector<float> x(kCount, 0.5F);
    onebitStats_t before{};
    onebitStats_t after{};
    before.size = after.size = sizeof before;
    ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &before)));
    ASSERT_TRUE(
        succeeded(onebitAllReduce(x.data(), x.data(), kCount, onebitFloat32, onebitSum, "g", comm, nullptr)));
    ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &after)));
    const double due = 2 * (kRanks - 1) / kRanks * (1.0 / 8 + 4.0 / 2048) * kCount;
    const auto sent = static_cast<double>(after.wire_bytes_sent - before.wire_bytes_sent);
    EXPECT_GT(sent, due);
    EXPECT_LT(sent, due * 1.03);
  });
}

}  // namespace
}  // namespace onebit::testing
