// A variance that stands still is read as if it had followed the norm of the gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "optimizer/training.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using collective::Communicator;

constexpr float kRate = 0.01F;
constexpr int kFrozenAfter = 60;

/// The factor of the last step.
double coefficient(Worker& worker) {
  const auto result = worker->coefficient(0);
  EXPECT_TRUE(result.ok());
  return result.ok() ? *result : 0;
}

Options quick_options(Kind kind) {
  Options options = short_options(kind);
  options.all.lr = kRate;
  options.all.weight_decay = 0;
  options.all.beta2 = 0.9;  // averages of 10 steps
  options.freeze_step = options.var_freeze_step = kFrozenAfter;
  options.var_update_scaler = 1000;
  options.local_step_scaler = 1000;
  return options;
}

/// Takes steps `from` + 1 to `to`, whose gradients are all 1 up to kFrozenAfter and `later` behind it.
Status train_on(Worker& worker, int from, int to, float later) {
  for (int step = from + 1; step <= to; ++step) {
    std::fill(worker.gradients.begin(), worker.gradients.end(), step <= kFrozenAfter ? 1.0F : later);
    ONEBIT_RETURN_IF_ERROR(worker.take());
  }
  return Status();
}

struct End {
  float move;  ///< of an element in the last step
  double coefficient;
};

/// Of 200 steps on 2 ranks.
End end_of(const Options& options, float later) {
  End end{};
  EXPECT_TRUE(ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, {100, 3}, communicator);
    ONEBIT_RETURN_IF_ERROR(train_on(worker, 0, 199, later));
    const float before = worker.parameters[0];
    ONEBIT_RETURN_IF_ERROR(train_on(worker, 199, 200, later));
    if (rank == 0) end = {before - worker.parameters[0], coefficient(worker)};
    return Status();
  })));
  return end;
}

constexpr Kind kKinds[] = {Kind::kOneBitAdam, Kind::kZeroOneAdam};

TEST(VarianceScale, MakesStepsAsLargeAsAdamsAfterGradientsHaveChanged) {
  for (const Kind kind : kKinds) {
    for (const float later : {0.5F, 1.0F, 2.0F}) {
      SCOPED_TRACE(::testing::Message() << name_of(kind) << ", gradients of " << later);
      const End end = end_of(quick_options(kind), later);
      EXPECT_NEAR(end.move, kRate, kRate * 1e-3);
      EXPECT_NEAR(end.coefficient, 1 / later, 1e-3);
    }
  }
}

TEST(VarianceScale, StaysWithinAFactorOfFour) {
  for (const Kind kind : kKinds) {
    EXPECT_EQ(end_of(quick_options(kind), 1e-3F).coefficient, 4);
    EXPECT_EQ(end_of(quick_options(kind), 0).coefficient, 4);
    EXPECT_EQ(end_of(quick_options(kind), 1e3F).coefficient, 0.25);
  }
}

TEST(VarianceScale, IsOneWhereItIsNotAskedForOrTheOriginalsNumbersAre) {
  for (const Kind kind : kKinds) {
    Options options = quick_options(kind);
    options.norm_factor = false;
    const End end = end_of(options, 0.5F);
    EXPECT_NEAR(end.move, kRate / 2, kRate * 1e-3);
    EXPECT_EQ(end.coefficient, 1);
    options = quick_options(kind);
    options.deepspeed_compat = true;
    EXPECT_EQ(end_of(options, 0.5F).coefficient, 1);
  }
}

TEST(VarianceScale, IsOneWhileTheVarianceChangesInEveryStep) {
  for (const Kind kind : kKinds) {
    ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(quick_options(kind), {100, 3}, communicator);
      for (int step = 1; step < kFrozenAfter; ++step) {
        ONEBIT_RETURN_IF_ERROR(worker.step(step));
        EXPECT_EQ(coefficient(worker), 1);
      }
      return Status();
    })));
  }
}

TEST(VarianceScale, FollowsBetweenUpdatesOfTheVarianceThatHaveBecomeSeldom) {
  Options options = quick_options(Kind::kZeroOneAdam);
  options.var_freeze_step = 1000;
  options.var_update_scaler =
      10;  // steps 1 to 10, every second one to 30, every fourth to 70, every eighth to 150
  double factor = 0;
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, {100, 3}, communicator);
    ONEBIT_RETURN_IF_ERROR(train_on(worker, 0, 90, 0.5F));
    if (rank == 0) factor = coefficient(worker);
    return Status();
  })));
  EXPECT_GT(factor, 1.2);
  EXPECT_LT(factor, 2);
}

TEST(VarianceScale, TakesTheNoiseOfOtherRanksForNoChangeOfGradients) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(name_of(kind));
    const Options options = quick_options(kind);
    const TemporaryDirectory directory;
    ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(options, {100, 3}, communicator);
      ONEBIT_RETURN_IF_ERROR(train_on(worker, 0, 200, 0.5F));
      return worker->save(directory.path());
    })));
    ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(options, {100, 3}, communicator);
      ONEBIT_RETURN_IF_ERROR(worker->load(directory.path()));
      for (int step = 200; step < 400; ++step) {  // smaller parts of a batch: gradients of a rank are larger
        ONEBIT_RETURN_IF_ERROR(train_on(worker, step, step + 1, step < 300 ? 0.9F : 0.45F));
        if (step < 300) {
          EXPECT_NEAR(coefficient(worker), 2, 1e-3) << step;
        }
      }
      EXPECT_NEAR(coefficient(worker), 4, 1e-3);
      return Status();
    })));
  }
}

}  // namespace
}  // namespace onebit::testing
