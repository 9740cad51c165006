// The bytes that steps send, by their kind: what the communicator has sent for them, and no more.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collective/partition.h"
#include "optimizer/training.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using optimizer::Stage;
using optimizer::Traffic;

constexpr std::size_t kElements = 40'000;

class OfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Traffic, OfRanks, ::testing::Values(1, 2, 3, 7));

TEST_P(OfRanks, OfAllKindsIsWhatTheCommunicatorHasSentInTheirSteps) {
  for (const Kind kind : kAllKinds) {
    SCOPED_TRACE(name_of(kind));
    EXPECT_TRUE(ok(run_local_ranks(GetParam(), "", [&](int, Communicator& communicator) -> Status {
      Worker worker(short_options(kind), {kElements}, communicator);
      for (int step = 1; step <= 45; ++step) {
        const std::uint64_t sent = communicator.bytes_sent();
        const Traffic before = worker->traffic();
        const bool is_full = worker->stage() == Stage::kWarmUp && kind != Kind::kZeroOneAdam;
        ONEBIT_RETURN_IF_ERROR(worker.step(step));
        const Traffic& after = worker->traffic();
        const std::uint64_t full = after.full - before.full;
        const std::uint64_t compressed = after.compressed - before.compressed;
        EXPECT_EQ(after.as_fp32 - before.as_fp32,
                  collective::ring_bytes(4 * kElements, communicator.ranks()));
        EXPECT_TRUE(full == 0 || compressed == 0) << step;
        if (is_full) {
          EXPECT_EQ(compressed, 0U) << step;
        }
        if (step == 1) continue;  // with what ranks tell each other of their tensors
        EXPECT_EQ(full + compressed, communicator.bytes_sent() - sent) << step;
      }
      return Status();
    })));
  }
}

TEST(Traffic, OfASkippedStepIsTheAgreementAloneAndStandsForNone) {
  EXPECT_TRUE(ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(short_options(Kind::kAdam), {kElements}, communicator);
    ONEBIT_RETURN_IF_ERROR(worker.step(1));
    const Traffic before = worker->traffic();
    worker.set_gradients(2);
    if (rank == 1) worker.gradients[7] = std::nanf("");
    ONEBIT_RETURN_IF_ERROR(worker.take());
    EXPECT_TRUE(worker.skipped);
    EXPECT_EQ(worker->traffic().as_fp32, before.as_fp32);
    EXPECT_GT(worker->traffic().full, before.full);
    EXPECT_LT(worker->traffic().full, before.full + 1000);
    return Status();
  })));
}

}  // namespace
}  // namespace onebit::testing
