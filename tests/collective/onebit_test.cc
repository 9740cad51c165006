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

#include "codec/codec.h"
#include "collective/partition.h"
#include "support/ranks.h"

namespace onebit::testing {
namespace {

using collective::PartitionPlan;
using collective::Range;

/// What all ranks together compute, one buffer after the other, with no chunks, no threads, no network.
class Simulation {
 public:
  Simulation(std::size_t ranks, std::size_t count, DataType type, ReduceOp op, codec::Parameters parameters)
      : ranks_(ranks),
        count_(count),
        type_(type),
        parameters_(parameters),
        factor_(op == ReduceOp::kAvg ? 1.0F / static_cast<float>(ranks) : 1.0F),
        plan_(count, ranks, count + 1),
        worker_(ranks, std::vector<float>(count)),
        owner_(count),
        codec_(codec::implementations().front()) {}

  /// inputs: one buffer of count elements a rank. Gives y.
  std::vector<std::byte> call(const std::vector<std::vector<std::byte>>& inputs) {
    const std::size_t element = size_of(type_);
    std::vector<float> worker_scales(ranks_);
    for (std::size_t r = 0; r < ranks_ && whole(); ++r) {
      std::vector<float> sums;
      for (std::size_t p = 0; p < ranks_; ++p) {
        const Range range = plan_.partition(p);
        std::vector<float> part(codec::sub_block_count(range.length));
        codec_.sums(type_, inputs[r].data() + range.begin * element, range.length, parameters_.scale,
                    worker_[r].data() + range.begin, part.data());
        sums.insert(sums.end(), part.begin(), part.end());
      }
      worker_scales[r] = codec::whole_scale(sums, count_, parameters_.scale);
    }
    std::vector<std::byte> y(count_ * element);
    for (std::size_t p = 0; p < ranks_; ++p) {
      const Range range = plan_.partition(p);
      if (range.length == 0) continue;
      const std::size_t scales = codec::scale_count(range.length, parameters_.block) * sizeof(float);
      std::vector<std::vector<std::byte>> piece_scales(ranks_, std::vector<std::byte>(scales));
      std::vector<std::vector<std::uint8_t>> piece_bits(
          ranks_, std::vector<std::uint8_t>(codec::bit_bytes(range.length)));
      std::vector<codec::Packed> pieces;
      for (std::size_t r = 0; r < ranks_; ++r) {
        const std::byte* x = inputs[r].data() + range.begin * element;
        float* error = worker_[r].data() + range.begin;
        if (whole()) {
          std::memcpy(piece_scales[r].data(), &worker_scales[r], sizeof(float));
          codec_.quantize(type_, x, range.length, worker_scales[r], error, piece_bits[r].data());
        } else {
          codec_.encode(type_, x, range.length, parameters_, error, piece_scales[r].data(),
                        piece_bits[r].data());
        }
        pieces.push_back({piece_scales[r].data(), piece_bits[r].data()});
      }
      std::vector<std::byte> result_scales(scales);
      std::vector<std::uint8_t> result_bits(codec::bit_bytes(range.length));
      if (whole()) {
        std::vector<float> averaged(range.length);
        std::vector<float> sums(codec::sub_block_count(range.length));
        codec_.accumulate(pieces, range.length, factor_, parameters_.scale, owner_.data() + range.begin,
                          averaged.data(), sums.data());
        const float scale = codec::whole_scale(sums, range.length, parameters_.scale);
        std::memcpy(result_scales.data(), &scale, sizeof scale);
        codec_.quantize(DataType::kFloat32, averaged.data(), range.length, scale, owner_.data() + range.begin,
                        result_bits.data());
      } else {
        codec_.average(pieces, range.length, factor_, parameters_, owner_.data() + range.begin,
                       result_scales.data(), result_bits.data());
      }
      codec_.decode(type_, {result_scales.data(), result_bits.data()}, range.length, parameters_,
                    y.data() + range.begin * element);
    }
    return y;
  }

 private:
  bool whole() const { return parameters_.block == codec::kWhole; }
  std::size_t ranks_;
  std::size_t count_;
  DataType type_;
  codec::Parameters parameters_;
  float factor_;
  PartitionPlan plan_;
  std::vector<std::vector<float>> worker_;
  std::vector<float> owner_;
  const codec::Implementation& codec_;
};

/// Random numbers of the type, of a magnitude that varies along the buffer.
std::vector<std::byte> input(DataType type, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float x = random.unit() * (1.0F + static_cast<float>(i % 5000) / 100.0F);
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    // Any 16 bits with a moderate exponent are a number of a 16-bit type.
    const auto bfloat16 = static_cast<std::uint16_t>(bits >> 16);
    const auto half = static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x2C00U | (bits & 0x17FFU));
    if (type == DataType::kFloat32) std::memcpy(bytes.data() + 4 * i, &x, 4);
    if (type == DataType::kBFloat16) std::memcpy(bytes.data() + 2 * i, &bfloat16, 2);
    if (type == DataType::kFloat16) std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

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
  SCOPED_TRACE(fmt::format("{} ranks, {} x {} {}, block {}, mean {}, {}", c.ranks, c.count, name_of(c.type),
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
      fmt::format("ONEBIT_MIN_SIZE=0\nONEBIT_BLOCK={}\nONEBIT_SCALE={}\n{}",
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
