// Ranks agree bit for bit at every common point: for every number of ranks, of threads, and for every SIMD
// implementation.

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "optimizer/training.h"

namespace onebit::testing {
namespace {

class AllRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AllRanks, ::testing::Range(1, 9));

/// 200 steps; after each, what all ranks have at a common point is the same. Some steps are skipped.
void expect_equal_ranks(int ranks, const Options& options) {
  SCOPED_TRACE(std::string(name_of(options.kind)) + (options.deepspeed_compat ? ", deepspeed_compat" : ""));
  constexpr int kSteps = 200;
  std::mutex mutex;
  std::vector<std::vector<float>> common(kSteps + 1);
  int points = 0;
  ASSERT_TRUE(ok(run_local_ranks(ranks, "", [&](int rank, collective::Communicator& communicator) -> Status {
    Worker worker(options, kOddSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(worker.status);
    for (int step = 1; step <= kSteps; ++step) {
      worker.set_gradients(step);
      const bool bad = step % 50 == 0 && rank == ranks - 1;
      if (bad) worker.gradients[5] = std::nanf("");
      ONEBIT_RETURN_IF_ERROR(worker.take());
      const std::lock_guard lock(mutex);
      EXPECT_EQ(worker.skipped, step % 50 == 0);
      if (!worker->in_common()) continue;
      auto& due = common[static_cast<std::size_t>(step)];
      if (due.empty()) {
        due = worker.parameters;
        ++points;
      }
      EXPECT_TRUE(same_bits(worker.parameters, due)) << "step " << step << ", rank " << rank;
    }
    return Status();
  })));
  EXPECT_GT(points, 30);
  for (const float w : common[30]) ASSERT_TRUE(std::isfinite(w));
}

TEST_P(AllRanks, HaveTheSameParametersAtEveryCommonPointOf200Steps) {
  for (const Kind kind : kAllKinds) expect_equal_ranks(GetParam(), short_options(kind));
}

TEST_P(AllRanks, HaveTheSameParametersWhereTheOriginalHasThem) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    Options options = short_options(kind);
    options.deepspeed_compat = true;
    options.var_freeze_step = 100;
    expect_equal_ranks(GetParam(), options);
  }
}

/// Large enough for threads.
const std::vector<std::size_t> kLargeSizes{200'000, 3, 70'001};

TEST(Result, DependsNeitherOnThreadsNorOnTheSimdImplementation) {
  for (const Kind kind : kAllKinds) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.freeze_step = 3;
    options.var_freeze_step = 4;
    const auto due = train(2, options, 10, kLargeSizes, "ONEBIT_THREADS=1");
    EXPECT_TRUE(same_bits(due[0], train(2, options, 10, kLargeSizes, "ONEBIT_THREADS=3")[0]));
    for (const auto& implementation : optimizer::passes()) {
      SCOPED_TRACE(implementation.name);
      const std::string settings = "ONEBIT_CODEC_IMPL=" + std::string(implementation.name);
      EXPECT_TRUE(same_bits(due[0], train(2, options, 10, kLargeSizes, settings)[0]));
    }
  }
}

}  // namespace
}  // namespace onebit::testing
