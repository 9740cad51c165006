// Long series of calls of all kinds, sizes, types and tags in a random order, the same on all ranks, with
// every result checked.

#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "support/ranks.h"
#include "support/sanitizers.h"

namespace onebit::testing {
namespace {

constexpr std::size_t kMost = 200'000;

/// Sizes of all magnitudes, and the ones around the limits between the ways that a call can go.
std::size_t random_count(Random& random) {
  switch (random.bits() % 6) {
    case 0:
      return random.bits() % 20;
    case 1:
      return 2040 + random.bits() % 16;  // 8 KiB of floats
    case 2:
      return 65'530 + random.bits() % 12;
    case 3:
      return random.bits() % 5000;
    default:
      return random.bits() % kMost;
  }
}

/// A small integer, so that sums are exact in every type and order.
int value(int rank, std::size_t i, std::uint64_t salt) {
  return static_cast<int>((i * 5 + static_cast<std::size_t>(rank) * 3 + salt % 97) % 15) - 7;
}

template <typename T>
void exact_call(onebitComm_t comm, int rank, int ranks, onebitDataType_t type, std::size_t count,
                std::uint64_t salt) {
  const bool in_place = salt % 2 == 0;
  const bool average = (type == onebitFloat32 || type == onebitFloat64) && salt % 3 == 0;
  std::vector<T> send(count);
  std::vector<T> receive(count, T(99));
  for (std::size_t i = 0; i < count; ++i) send[i] = static_cast<T>(value(rank, i, salt));
  T* const out = in_place ? send.data() : receive.data();
  ASSERT_TRUE(succeeded(onebitAllReduce(send.data(), out, count, type, average ? onebitAvg : onebitSum,
                                        nullptr, comm, nullptr)));
  for (std::size_t i = 0; i < count; ++i) {
    int sum = 0;
    for (int r = 0; r < ranks; ++r) sum += value(r, i, salt);
    T due = static_cast<T>(sum);
    if (average) due = due * (T(1) / static_cast<T>(ranks));
    ASSERT_EQ(out[i], due) << "element " << i << " of " << count;
  }
}

void broadcast_call(onebitComm_t comm, int rank, int ranks, std::size_t count, std::uint64_t salt) {
  const int root = static_cast<int>(salt % static_cast<std::uint64_t>(ranks));
  std::vector<std::uint8_t> x(count, 255);
  for (std::size_t i = 0; i < count && rank == root; ++i)
    x[i] = static_cast<std::uint8_t>((i * 13 + salt) % 251);
  ASSERT_TRUE(succeeded(onebitBroadcast(x.data(), x.data(), count, onebitUint8, root, comm, nullptr)));
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(x[i], (i * 13 + salt) % 251) << "byte " << i << " of " << count;
}

void gather_call(onebitComm_t comm, int rank, int ranks, std::size_t count, std::uint64_t salt) {
  count /= static_cast<std::size_t>(ranks);
  std::vector<std::int32_t> all(count * static_cast<std::size_t>(ranks), -1);
  std::int32_t* const mine = all.data() + static_cast<std::size_t>(rank) * count;  // in place
  for (std::size_t i = 0; i < count; ++i) mine[i] = value(rank, i, salt) + 100 * rank;
  ASSERT_TRUE(succeeded(onebitAllGather(mine, all.data(), count, onebitInt32, comm, nullptr)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int r = static_cast<int>(i / count);
    ASSERT_EQ(all[i], value(r, i % count, salt) + 100 * r);
  }
}

/// What must hold of a tag's calls together: inputs less outputs stay bounded, as the residuals carry them
/// on; all ranks agree.
struct Tensor {
  std::size_t count = 0;
  std::vector<double> in, out;
};

void compressed_call(onebitComm_t comm, int rank, int ranks, Tensor& tensor, const std::string& tag,
                     std::uint64_t salt) {
  std::vector<float> x(tensor.count);
  const auto element = [&](int r, std::size_t i) { return static_cast<float>(value(r, i, salt)); };
  for (std::size_t i = 0; i < tensor.count; ++i) x[i] = element(rank, i);
  ASSERT_TRUE(succeeded(onebitAllReduce(x.data(), x.data(), tensor.count, onebitFloat32, onebitAvg,
                                        tag.c_str(), comm, nullptr)));
  for (std::size_t i = 0; i < tensor.count; ++i) {
    double mean = 0;
    for (int r = 0; r < ranks; ++r) mean += element(r, i) / static_cast<double>(ranks);
    tensor.in[i] += mean;
    tensor.out[i] += x[i];
    // A residual is at most a few scales, and a scale some of the largest input.
    ASSERT_LT(std::abs(tensor.in[i] - tensor.out[i]), 150.0)
        << tag << " element " << i << " of " << tensor.count;
  }
  // The same bytes everywhere: rank 0's are the measure.
  std::vector<float> first = x;
  ASSERT_TRUE(
      succeeded(onebitBroadcast(first.data(), first.data(), first.size(), onebitFloat32, 0, comm, nullptr)));
  ASSERT_EQ(std::memcmp(first.data(), x.data(), x.size() * sizeof(float)), 0) << tag << ": ranks differ";
}

class RandomCalls : public ::testing::TestWithParam<std::tuple<int, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndSeeds, RandomCalls,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(1U, 2U)));

TEST_P(RandomCalls, AllGiveWhatTheyMust) {
  const auto [ranks, seed] = GetParam();
  constexpr int kCalls = sanitized() ? 50 : 500;
  const std::string settings = seed == 1
                                   ? "ONEBIT_MIN_SIZE=0\nONEBIT_THREADS=2\n"
                                   : "ONEBIT_MIN_SIZE=1000\nONEBIT_CHUNK=2048\nONEBIT_PIPELINE_DEPTH=2\n"
                                     "ONEBIT_BLOCK=256\nONEBIT_TCP_FLOWS=3\n";
  run_ranks(ranks,
            [&](int rank, onebitComm_t comm) {
              Random random(std::get<1>(GetParam()));
              std::map<std::string, Tensor> tensors;
              for (int call = 0; call < kCalls; ++call) {
                const std::uint64_t kind = random.bits() % 10;
                const std::size_t count = random_count(random);
                const std::uint64_t salt = random.bits() >> 8;
                SCOPED_TRACE("call " + std::to_string(call) + ", kind " + std::to_string(kind));
                const int world = std::get<0>(GetParam());
                if (kind == 0) exact_call<float>(comm, rank, world, onebitFloat32, count, salt);
                if (kind == 1) exact_call<double>(comm, rank, world, onebitFloat64, count, salt);
                if (kind == 2) exact_call<std::int32_t>(comm, rank, world, onebitInt32, count, salt);
                if (kind == 3) exact_call<std::int64_t>(comm, rank, world, onebitInt64, count, salt);
                if (kind == 4) broadcast_call(comm, rank, world, count, salt);
                if (kind == 5) gather_call(comm, rank, world, count, salt);
                if (kind == 6) {
                  ASSERT_TRUE(succeeded(onebitBarrier(comm)));
                }
                if (kind >= 7) {
                  const std::string tag = "tensor " + std::to_string(salt % 12);
                  Tensor& tensor = tensors[tag];
                  if (tensor.count == 0) {
                    tensor.count = count + 1;
                    tensor.in.resize(tensor.count);
                    tensor.out.resize(tensor.count);
                  }
                  compressed_call(comm, rank, world, tensor, tag, salt);
                }
                if (::testing::Test::HasFatalFailure()) return;
              }
            },
            {settings});
}

}  // namespace
}  // namespace onebit::testing
