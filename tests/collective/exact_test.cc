// The exact allreduce, broadcast, allgather and barrier: right for every type, count and number of ranks.

#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "support/ranks.h"
#include "support/sanitizers.h"

namespace onebit::testing {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 9, 63, 1000, 1023, 4097, 65537, 300'007};

/// Small integers, so that sums and their thirds and sevenths are what they are in every floating type and
/// order.
template <typename T>
T value(int rank, std::size_t i) {
  return static_cast<T>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 17) - 8);
}

template <typename T>
void expect_sums(onebitDataType_t type, int ranks) {
  run_ranks(ranks, [&](int rank, onebitComm_t comm) {
    for (const std::size_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        std::vector<T> send(count + 1);
        for (std::size_t i = 0; i < count; ++i) send[i] = value<T>(rank, i);
        std::vector<T> receive(count + 1, T(99));
        T* out = in_place ? send.data() : receive.data();
        out[count] = T(77);
        ASSERT_TRUE(
            succeeded(onebitAllReduce(send.data(), out, count, type, onebitSum, nullptr, comm, nullptr)));
        for (std::size_t i = 0; i < count; ++i) {
          T sum = 0;
          for (int r = 0; r < ranks; ++r) sum += value<T>(r, i);
          ASSERT_EQ(out[i], sum) << "count " << count << " element " << i;
        }
        ASSERT_EQ(out[count], T(77)) << "written behind the end";
      }
    }
  });
}

class Exact : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Exact, ::testing::Values(1, 2, 3, 7, 8));

TEST_P(Exact, SumsFloatsExactlyForEveryCount) {
  expect_sums<float>(onebitFloat32, GetParam());
}
TEST_P(Exact, SumsDoublesExactlyForEveryCount) {
  expect_sums<double>(onebitFloat64, GetParam());
}
TEST_P(Exact, SumsInt32ExactlyForEveryCount) {
  expect_sums<std::int32_t>(onebitInt32, GetParam());
}
TEST_P(Exact, SumsInt64ExactlyForEveryCount) {
  expect_sums<std::int64_t>(onebitInt64, GetParam());
}

/// bf16 and fp16 of the small integers: their bits are made by hand from the float's.
std::uint16_t bfloat16_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}
std::uint16_t half_bits(float x) {
  if (x == 0) return 0;
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t exponent = ((bits >> 23) & 0xFF) - 127 + 15;
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000) | (exponent << 10) | ((bits >> 13) & 0x3FF));
}

TEST_P(Exact, SumsHalfAndBfloat16OfSmallIntegersExactly) {
  const int ranks = GetParam();
  for (const bool half : {true, false}) {
    const auto encode = half ? half_bits : bfloat16_bits;
    run_ranks(ranks, [&](int rank, onebitComm_t comm) {
      for (const std::size_t count : kCounts) {
        std::vector<std::uint16_t> buffer(count);
        for (std::size_t i = 0; i < count; ++i) buffer[i] = encode(value<float>(rank, i));
        ASSERT_TRUE(
            succeeded(onebitAllReduce(buffer.data(), buffer.data(), count,
                                      half ? onebitFloat16 : onebitBfloat16, onebitSum, "", comm, nullptr)));
        for (std::size_t i = 0; i < count; ++i) {
          float sum = 0;
          for (int r = 0; r < ranks; ++r) sum += value<float>(r, i);
          ASSERT_EQ(buffer[i], encode(sum)) << "count " << count << " element " << i;
        }
      }
    });
  }
}

TEST_P(Exact, AveragesAreTheSumTimesOneOverRanks) {
  const int ranks = GetParam();
  run_ranks(ranks, [&](int rank, onebitComm_t comm) {
    for (const std::size_t count : kCounts) {
      std::vector<float> buffer(count);
      for (std::size_t i = 0; i < count; ++i) buffer[i] = value<float>(rank, i);
      ASSERT_TRUE(succeeded(onebitAllReduce(buffer.data(), buffer.data(), count, onebitFloat32, onebitAvg,
                                            nullptr, comm, nullptr)));
      const float factor = 1.0F / static_cast<float>(ranks);
      for (std::size_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int r = 0; r < ranks; ++r) sum += value<float>(r, i);
        ASSERT_EQ(buffer[i], sum * factor) << "count " << count << " element " << i;
      }
    }
  });
}

TEST_P(Exact, BroadcastGivesTheRootsBytesToAll) {
  const int ranks = GetParam();
  run_ranks(ranks, [&](int rank, onebitComm_t comm) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{1009}, std::size_t{1'000'003}}) {
      for (const int root : {0, ranks - 1}) {
        std::vector<std::uint8_t> buffer(count + 1, 200);
        for (std::size_t i = 0; i < count && rank == root; ++i)
          buffer[i] = static_cast<std::uint8_t>(i * 31 % 199);
        ASSERT_TRUE(succeeded(
            onebitBroadcast(buffer.data(), buffer.data(), count, onebitUint8, root, comm, nullptr)));
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(buffer[i], i * 31 % 199) << "byte " << i << " of " << count;
        ASSERT_EQ(buffer[count], 200);
      }
    }
  });
}

TEST_P(Exact, AllGatherPutsEveryRanksElementsInRankOrder) {
  const int ranks = GetParam();
  run_ranks(ranks, [&](int rank, onebitComm_t comm) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{10'007}}) {
      std::vector<std::int32_t> send(count);
      std::iota(send.begin(), send.end(), rank * 1'000'000);
      std::vector<std::int32_t> all(count * static_cast<std::size_t>(ranks));
      ASSERT_TRUE(succeeded(onebitAllGather(send.data(), all.data(), count, onebitInt32, comm, nullptr)));
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<int>(i / count) * 1'000'000 + static_cast<int>(i % count));
      }
    }
  });
}

TEST(ExactAtScale, SixtyFourRanksReduceOneMebibyte) {
  if (sanitized()) GTEST_SKIP() << "64 ranks take minutes under a sanitizer";
  constexpr std::size_t kCount = (1 << 20) / sizeof(float);
  run_ranks(64, [&](int rank, onebitComm_t comm) {
    std::vector<float> buffer(kCount);
    for (std::size_t i = 0; i < kCount; ++i) buffer[i] = value<float>(rank, i);
    ASSERT_TRUE(succeeded(onebitAllReduce(buffer.data(), buffer.data(), kCount, onebitFloat32, onebitSum,
                                          nullptr, comm, nullptr)));
    for (std::size_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (int r = 0; r < 64; ++r) sum += value<float>(r, i);
      ASSERT_EQ(buffer[i], sum) << "element " << i;
    }
  });
}

TEST(ExactOrder, TheSumIsTakenInRankOrderWhateverTheTiming) {
  // 1e8 + 1 - 1e8 is 0 in fp32 in rank order, and 1 in another.
  const float values[] = {1e8F, 1.0F, -1e8F};
  run_ranks(3, [&](int rank, onebitComm_t comm) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{100'000}}) {
      std::vector<float> buffer(count, values[rank]);
      ASSERT_TRUE(succeeded(onebitAllReduce(buffer.data(), buffer.data(), count, onebitFloat32, onebitSum,
                                            nullptr, comm, nullptr)));
      for (const float x : buffer) ASSERT_EQ(x, 0.0F);
    }
  });
}

TEST(ManyCommunicators, OneProcessCanHoldSeveralAndUseThemAtOnce) {
  std::vector<std::thread> jobs;
  for (int job = 0; job < 4; ++job) {
    jobs.emplace_back([job] {
      run_ranks(2, [job](int rank, onebitComm_t comm) {
        for (int call = 0; call < 20; ++call) {
          std::vector<std::int64_t> buffer(10'000, rank + job * 10);
          ASSERT_TRUE(succeeded(onebitAllReduce(buffer.data(), buffer.data(), buffer.size(), onebitInt64,
                                                onebitSum, nullptr, comm, nullptr)));
          for (const auto x : buffer) ASSERT_EQ(x, 1 + 20 * job);
        }
      });
    });
  }
  for (std::thread& job : jobs) job.join();
}

}  // namespace
}  // namespace onebit::testing
