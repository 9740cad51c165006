// The original implementation's compressed allreduce, recorded (tests/golden/README.md), against ours in
// `whole` mode over real communicators: results, worker errors and owner errors of five rounds.

#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "collective/partition.h"
#include "collective/residual_file.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

constexpr int kRounds = 5;
constexpr float kTolerance = 2e-6F;

/// The generator of the inputs: 20 random bits as a multiple of 2^-19 in [-1, 1).
float unit(std::uint64_t stream, std::uint64_t rank, std::uint64_t step, std::uint64_t i) {
  Random random((stream << 56) ^ (rank << 44) ^ (step << 28) ^ i);
  return static_cast<float>(static_cast<double>(random.bits() >> 44) / (1 << 19) - 1);
}
std::vector<float> input(int rank, int round, std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool zero = round == 1 && i % 64 == 5;
    x[i] = zero ? 0.0F : unit(4, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(round), i);
  }
  return x;
}

std::vector<float> golden(int ranks, const std::string& what, std::size_t elements) {
  const std::string bytes = read_bytes(std::string(ONEBIT_GOLDEN) + "/compressed_allreduce-w" +
                                       std::to_string(ranks) + "." + what + ".f32");
  EXPECT_EQ(bytes.size(), elements * sizeof(float)) << what;
  std::vector<float> values(elements);
  std::memcpy(values.data(), bytes.data(), std::min(bytes.size(), elements * sizeof(float)));
  return values;
}

void expect_near(const float* got, const float* due, std::size_t count, const std::string& what) {
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_NEAR(got[i], due[i], kTolerance) << what << ", element " << i;
}

class Golden : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Golden, ::testing::Values(2, 3, 4, 8));

TEST_P(Golden, FiveRoundsGiveTheRecordedResultsAndErrors) {
  const int ranks = GetParam();
  const auto world = static_cast<std::size_t>(ranks);
  const std::size_t count = ranks == 3 ? 1152 : 1024;
  const auto out = golden(ranks, "out", kRounds * count);
  const auto worker = golden(ranks, "worker_error", kRounds * world * count);
  const auto server = golden(ranks, "server_error", kRounds * count);
  const TemporaryDirectory directory;
  run_ranks(ranks,
            [&](int rank, onebitComm_t comm) {
              const auto me = static_cast<std::size_t>(rank);
              for (int round = 1; round <= kRounds; ++round) {
                SCOPED_TRACE("round " + std::to_string(round));
                const auto at = static_cast<std::size_t>(round - 1);
                const auto x = input(rank, round, count);
                std::vector<float> y(count);
                ASSERT_TRUE(succeeded(onebitAllReduce(x.data(), y.data(), count, onebitFloat32, onebitAvg,
                                                      "t", comm, nullptr)));
                expect_near(y.data(), out.data() + at * count, count, "result");

                ASSERT_TRUE(succeeded(onebitResidualSave(comm, directory.path().c_str())));
                ASSERT_TRUE(succeeded(onebitBarrier(comm)));
                collective::ResidualStore store(me, world);
                const Status status = collective::load_residuals(store, "test", directory.path()).status();
                ASSERT_TRUE(status.ok()) << status.message();
                const collective::Residual& residual = store.entries().at("t");
                expect_near(residual.worker_error.data(), worker.data() + (at * world + me) * count, count,
                            "worker error");
                const auto own = collective::PartitionPlan(count, world, 1).partition(me);
                ASSERT_EQ(own.length, count / world);
                expect_near(residual.owner_error.data(), server.data() + at * count + own.begin, own.length,
                            "owner error");
              }
            },
            {"ONEBIT_BLOCK=whole\nONEBIT_SCALE=rms\nONEBIT_MIN_SIZE=0"});
}

}  // namespace
}  // namespace onebit::testing
