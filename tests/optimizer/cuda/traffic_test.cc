// The bytes that an optimizer in a GPU's memory says it sends: those of the schedule's messages, and a ring's
// of NCCL's exact collectives.

#include <gmock/gmock.h>

#include "device_ranks.h"

namespace onebit::testing {
namespace {

constexpr std::uint64_t kElements = 300'000;
constexpr std::uint64_t kAgreement = 32;
constexpr std::uint64_t kBlock = 2048;

std::uint64_t ring(std::uint64_t bytes, std::uint64_t ranks) {
  return 2 * (ranks - 1) * bytes / ranks;
}

class OfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DeviceTraffic, OfRanks, ::testing::Values(1, 2, 3));

TEST_P(OfRanks, InFullPrecisionIsARingsOfGradientsAndAgreements) {
  const auto ranks = static_cast<std::uint64_t>(GetParam());
  run_twin_ranks(GetParam(), [&](TwinRank& here) {
    const auto twins = here.twins(short_config(onebitAdam), {{kElements}});
    for (int step = 1; step <= 5; ++step) ASSERT_TRUE(twins->step(step));
    const auto info = OptimizerTwins::info(twins->device());
    EXPECT_EQ(info.full_bytes, 5 * (ring(4 * kElements, ranks) + ring(kAgreement, ranks)));
    EXPECT_EQ(info.compressed_bytes, 0U);
    EXPECT_EQ(info.fp32_bytes, 5 * ring(4 * kElements, ranks));
    EXPECT_EQ(info.fp32_bytes, OptimizerTwins::info(twins->host()).fp32_bytes);
  });
}

TEST_P(OfRanks, InOneBitIsThatOfPiecesAndAverages) {
  const auto ranks = static_cast<std::uint64_t>(GetParam());
  const std::uint64_t partition = (kElements / ranks + (kElements % ranks != 0) + 7) / 8 * 8;
  const std::uint64_t message = 4 * ((partition + kBlock - 1) / kBlock) + partition / 8;
  run_twin_ranks(GetParam(), [&](TwinRank& here) {
    auto config = short_config(onebitOneBitAdam);
    config.freeze_step = 2;
    const auto twins = here.twins(config, {{kElements}});
    for (int step = 1; step <= 12; ++step) ASSERT_TRUE(twins->step(step));
    const auto info = OptimizerTwins::info(twins->device());
    EXPECT_EQ(info.full_bytes, 2 * (ring(4 * kElements, ranks) + ring(kAgreement, ranks)));
    EXPECT_EQ(info.fp32_bytes, 12 * ring(4 * kElements, ranks));
    // Messages are aligned, and the last partition is a little shorter.
    const std::uint64_t due = 10 * (ring(kAgreement, ranks) + 2 * (ranks - 1) * message);
    EXPECT_NEAR(static_cast<double>(info.compressed_bytes), static_cast<double>(due),
                10.0 * static_cast<double>(ranks - 1) * 2 * 64);
    const auto host = OptimizerTwins::info(twins->host());
    EXPECT_LE(info.compressed_bytes, host.compressed_bytes);  // which has headers
    EXPECT_GE(static_cast<double>(info.compressed_bytes), 0.97 * static_cast<double>(host.compressed_bytes));
  });
}

TEST(DeviceTraffic, OfASkippedStepIsTheAgreementAloneAndStandsForNone) {
  run_twin_ranks(2, [](TwinRank& here) {
    const auto twins = here.twins(short_config(onebitOneBitLamb), {{kElements}});
    ASSERT_TRUE(twins->step(1));
    const auto before = OptimizerTwins::info(twins->device());
    ASSERT_TRUE(twins->step(2, [](std::size_t, std::size_t, float) { return std::nanf(""); }));
    const auto after = OptimizerTwins::info(twins->device());
    EXPECT_EQ(after.skipped_steps, 1);
    EXPECT_EQ(after.full_bytes - before.full_bytes, kAgreement);
    EXPECT_EQ(after.fp32_bytes, before.fp32_bytes);
  });
}

}  // namespace
}  // namespace onebit::testing
