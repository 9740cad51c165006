// The 1-bit optimizers correct momentum and variance for their start at 0, as Adam and LAMB do, and the
// compressed stage goes on from there.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optimizer/training.h"

namespace onebit::testing {
namespace {

using collective::Communicator;

constexpr float kRate = 0.01F;

/// Options in which nothing but the gradients moves weights.
Options plain_options(Kind kind, int freeze_step) {
  Options options = short_options(kind);
  options.all.lr = kRate;
  options.all.weight_decay = 0;
  options.freeze_step = options.var_freeze_step = freeze_step;
  return options;
}

/// How far an element moves in each of `steps` steps whose gradients are 0.5 or -0.5, on `ranks` ranks. 1 bit
/// holds such gradients without an error.
std::vector<float> moves(const Options& options, int ranks, int steps) {
  std::vector<float> all;
  EXPECT_TRUE(ok(run_local_ranks(ranks, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, {100, 37}, communicator);
    for (std::size_t i = 0; i < worker.gradients.size(); ++i) worker.gradients[i] = i % 3 == 0 ? 0.5F : -0.5F;
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> before = worker.parameters;
      ONEBIT_RETURN_IF_ERROR(worker.take());
      if (rank != 0) continue;
      all.push_back(before[0] - worker.parameters[0]);
      EXPECT_NEAR(worker.parameters[1] - before[1], all.back(), 1e-6);
    }
    return Status();
  })));
  return all;
}

TEST(BiasCorrection, MakesAConstantGradientMoveWeightsByTheLearningRateInEveryStepOfEveryStage) {
  for (const Kind kind : {Kind::kAdam, Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    for (const int freeze_step : {1, 7, 30}) {
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(kind) << ", frozen after " << freeze_step << ", " << ranks);
        const auto all = moves(plain_options(kind, freeze_step), ranks, 60);
        ASSERT_EQ(all.size(), 60U);
        for (const float move : all) ASSERT_NEAR(move, kRate, 2e-5);
      }
    }
  }
}

TEST(BiasCorrection, IsNotThereWhereItIsNotAskedForOrTheOriginalsNumbersAre) {
  for (const Kind kind : {Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    for (const bool compat : {false, true}) {
      Options options = plain_options(kind, 20);
      options.bias_correction = compat;
      options.deepspeed_compat = compat;
      const auto all = moves(options, 2, 3);
      ASSERT_EQ(all.size(), 3U);
      EXPECT_NEAR(all[0], kRate * 0.1 / std::sqrt(0.001), 1e-4);  // lr (1 - beta1) / sqrt(1 - beta2)
    }
  }
}

TEST(BiasCorrection, MakesTheWarmUpThatOfTheOptimizerInFullPrecision) {
  const struct {
    Kind kind, full;
  } cases[] = {
      {Kind::kOneBitAdam, Kind::kAdam}, {Kind::kZeroOneAdam, Kind::kAdam}, {Kind::kOneBitLamb, Kind::kLamb}};
  for (const auto& [kind, full] : cases) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.freeze_step = options.var_freeze_step = options.var_update_scaler = 1000;
    EXPECT_TRUE(same_bits(train(2, options, 30)[0], train(2, short_options(full), 30)[0]));
  }
}

}  // namespace
}  // namespace onebit::testing
