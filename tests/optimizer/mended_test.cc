// The original's faults: mended by default, kept in deepspeed_compat.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "optimizer/onebit_lamb.h"
#include "optimizer/training.h"
#include "optimizer/zero_one_adam.h"

namespace onebit::testing {
namespace {

using collective::Communicator;

constexpr Kind kOneBitKinds[] = {Kind::kOneBitLamb, Kind::kOneBitAdam, Kind::kZeroOneAdam};

Options compat(Options options) {
  options.deepspeed_compat = true;
  return options;
}

/// Trains on 2 ranks, with `change` after set_gradients of each step, and gives rank 0's end to `look`.
void train_two(const Options& options, const std::vector<std::size_t>& sizes, int steps,
               const std::function<void(Worker&, int step, int rank)>& change,
               const std::function<void(Worker&)>& look, const Worker::Change& tensors = {}) {
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, sizes, communicator, tensors);
    ONEBIT_RETURN_IF_ERROR(worker.status);
    for (int step = 1; step <= steps; ++step) {
      worker.set_gradients(step);
      change(worker, step, rank);
      ONEBIT_RETURN_IF_ERROR(worker.take());
    }
    if (rank == 0) look(worker);
    return Status();
  })));
}

TEST(CoordinatesWithoutVariance, StayInsteadOfExploding) {
  constexpr std::size_t kSilent = 40;
  for (const Kind kind : kOneBitKinds) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.all.weight_decay = 0;
    const auto silence = [](Worker& worker, int, int) { worker.gradients[kSilent] = 0; };
    float start = 0, end = 0, original = 0;
    train_two(options, {100, 30}, 0, silence, [&](Worker& worker) { start = worker.parameters[kSilent]; });
    train_two(options, {100, 30}, 60, silence, [&](Worker& worker) { end = worker.parameters[kSilent]; });
    train_two(compat(options), {100, 30}, 60, silence,
              [&](Worker& worker) { original = worker.parameters[kSilent]; });
    EXPECT_EQ(end, start);
    EXPECT_GT(std::abs(original - start), 10);
  }
}

TEST(CoordinatesWithoutVariance, StayWhenTheirFirstGradientComesAfterTheFreeze) {
  for (const Kind kind : kOneBitKinds) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.all.weight_decay = 0;
    const auto late = [](Worker& worker, int step, int) {
      if (step <= 35) worker.gradients[7] = 0;
    };
    float start = 0, end = 0;
    train_two(options, {100}, 0, late, [&](Worker& worker) { start = worker.parameters[7]; });
    train_two(options, {100}, 60, late, [&](Worker& worker) { end = worker.parameters[7]; });
    EXPECT_EQ(end, start);
  }
}

TEST(CoordinatesWithHardlyAnyVariance, MoveNoFurtherThanAdamCouldMoveThemUnlessToldTo) {
  for (const Kind kind : kOneBitKinds) {
    SCOPED_TRACE(name_of(kind));
    Options options = short_options(kind);
    options.all.weight_decay = 0;
    options.all.lr = 1e-3;
    const auto whisper = [](Worker& worker, int, int) { worker.gradients[40] *= 1e-6F; };
    float start = 0, end = 0, unbounded = 0, original = 0;
    train_two(options, {100, 30}, 0, whisper, [&](Worker& worker) { start = worker.parameters[40]; });
    train_two(options, {100, 30}, 60, whisper, [&](Worker& worker) { end = worker.parameters[40]; });
    train_two(compat(options), {100, 30}, 60, whisper,
              [&](Worker& worker) { original = worker.parameters[40]; });
    options.bound_moves = false;
    train_two(options, {100, 30}, 60, whisper, [&](Worker& worker) { unbounded = worker.parameters[40]; });
    EXPECT_LT(std::abs(end - start), 60 * 7.3 * 1e-3);
    EXPECT_GT(std::abs(unbounded - start), 1);
    EXPECT_GT(std::abs(original - start), 1);
  }
}

TEST(TensorWithoutMomentum, HasTheScaleOneAndDoesNotDisturbOthers) {
  for (const bool original : {false, true}) {
    Options options = short_options(Kind::kOneBitLamb);
    options.deepspeed_compat = original;
    train_two(
        options, {50, 60}, 40,
        [](Worker& worker, int, int) {
          std::fill(worker.gradients.begin() + 50, worker.gradients.end(), 0.0F);
        },
        [&](Worker& worker) {
          const auto& lamb = dynamic_cast<optimizer::OneBitLamb&>(worker->algorithm());
          EXPECT_EQ(lamb.scale(1), 1);
          EXPECT_TRUE(std::isfinite(lamb.scale(0)));
          for (const float w : worker.parameters) ASSERT_TRUE(original || std::abs(w) < 10);
        });
  }
}

TEST(NanOfOneRank, IsSkippedByAllAndTouchesNothing) {
  for (const Kind kind : kAllKinds) {
    for (const bool clips : {false, true}) {
      SCOPED_TRACE(name_of(kind));
      Options options = short_options(kind);
      options.gradient_clipping = clips ? 1 : 0;
      ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int rank, Communicator& communicator) -> Status {
        Worker worker(options, kOddSizes, communicator);
        for (int step = 1; step <= 50; ++step) {  // through all stages, intervals and kinds of steps
          const auto before = worker.parameters;
          const auto residuals = worker.worker_errors();
          const auto m = worker.state(4, "exp_avg");
          const auto v = worker.state(4, "exp_avg_sq");
          worker.set_gradients(step);
          if (rank == step % 3)
            worker.gradients[static_cast<std::size_t>(step)] = step % 2 == 0 ? std::nanf("") : INFINITY;
          ONEBIT_RETURN_IF_ERROR(worker.take());
          EXPECT_TRUE(worker.skipped);
          EXPECT_TRUE(same_bits(worker.parameters, before));
          EXPECT_TRUE(same_bits(worker.state(4, "exp_avg"), m));
          EXPECT_TRUE(same_bits(worker.state(4, "exp_avg_sq"), v));
          EXPECT_EQ(worker.worker_errors(), residuals);
          ONEBIT_RETURN_IF_ERROR(worker.step(step));
          EXPECT_FALSE(worker.skipped);
        }
        EXPECT_EQ(worker->skipped_steps(), 50);
        EXPECT_EQ(worker->steps(), 50);
        return Status();
      })));
    }
  }
}

TEST(Mask, TakesMomentumAwayWithoutPinningTheFactor) {
  for (const Kind kind : kOneBitKinds) {
    SCOPED_TRACE(name_of(kind));
    std::vector<std::uint8_t> mask(100, 1);
    std::fill(mask.begin() + 80, mask.end(), 0);
    const auto set_mask = [&](std::vector<TensorSpec>& tensors) { tensors[0].mask = mask.data(); };
    Options options = short_options(kind);
    options.all.weight_decay = 0;
    std::vector<float> start;
    train_two(
        options, {100, 30}, 0, [](Worker&, int, int) {}, [&](Worker& worker) { start = worker.parameters; });
    train_two(
        options, {100, 30}, 60, [](Worker&, int, int) {},
        [&](Worker& worker) {
          const auto m = worker.state(0, "exp_avg");
          for (std::size_t i = 80; i < 100; ++i) {
            EXPECT_EQ(m[i], 0);
            EXPECT_EQ(worker.parameters[i], start[i]);  // though its gradients are not 0
          }
          if (kind == Kind::kOneBitLamb) {
            EXPECT_NE(dynamic_cast<optimizer::OneBitLamb&>(worker->algorithm()).numbers(0).last_factor, 1);
          }
        },
        set_mask);
  }
}

TEST(CoefficientAverage, IsNotLowAfterAShortWarmUp) {
  Options options = short_options(Kind::kOneBitLamb);
  options.freeze_step = 3;
  double last = 0, after = 0, original = 0;
  train_two(
      options, {100}, 3, [](Worker&, int, int) {},
      [&](Worker& worker) { last = worker->algorithm().coefficient(0); });
  const auto look = [](double& to) {
    return [&to](Worker& worker) { to = worker->algorithm().coefficient(0); };
  };
  train_two(
      options, {100}, 4, [](Worker&, int, int) {}, look(after));
  train_two(
      compat(options), {100}, 4, [](Worker&, int, int) {}, look(original));
  EXPECT_GT(after, 0.5 * last);
  EXPECT_LT(original, 0.3 * last);
}

TEST(Coefficient, OfAZeroTensorIsWithinItsBounds) {
  Options options = short_options(Kind::kOneBitLamb);
  options.all.max_coeff = 0.3;
  const auto zero = [](Worker& worker, int step, int) {
    if (step == 1) std::fill(worker.parameters.begin(), worker.parameters.end(), 0.0F);
  };
  const auto expect = [](double due) {
    return [due](Worker& worker) { EXPECT_EQ(worker->algorithm().coefficient(0), due); };
  };
  train_two(options, {100}, 1, zero, expect(0.3));
  train_two(compat(options), {100}, 1, zero, expect(1));
}

TEST(Clipping, BitesAsMuchWhenRanksOnlyKnowTheirOwnGradients) {
  // Each rank's gradient has the norm 1, their mean 1/2: a limit of 0.6 must not change anything.
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    SCOPED_TRACE(name_of(kind));
    const auto run = [&](const Options& options) {
      std::vector<float> end;
      EXPECT_TRUE(ok(run_local_ranks(4, "", [&](int rank, Communicator& communicator) -> Status {
        Worker worker(options, {64}, communicator);
        for (int step = 1; step <= 45; ++step) {
          std::fill(worker.gradients.begin(), worker.gradients.end(), 0.0F);
          for (int i = 0; i < 16; ++i) worker.gradients[static_cast<std::size_t>(rank * 16 + i)] = 0.25F;
          ONEBIT_RETURN_IF_ERROR(worker.take());
        }
        if (rank == 0) end = worker.parameters;
        return Status();
      })));
      return end;
    };
    Options options = short_options(kind);
    Options clipping = options;
    clipping.gradient_clipping = 0.6;
    EXPECT_TRUE(same_bits(run(options), run(clipping)));
    EXPECT_FALSE(same_bits(run(compat(options)), run(compat(clipping))));
  }
}

TEST(Clipping, LimitsTheNormOfTheMeanGradient) {
  Options options = short_options(Kind::kAdam);
  options.gradient_clipping = 0.5;
  options.bias_correction = false;
  train_two(
      options, {400}, 1,
      [](Worker& worker, int, int) { std::fill(worker.gradients.begin(), worker.gradients.end(), 3.0F); },
      [](Worker& worker) {
        double squares = 0;
        for (const float m : worker.state(0, "exp_avg")) squares += std::pow(static_cast<double>(m), 2);
        EXPECT_NEAR(std::sqrt(squares), 0.1 * 0.5, 1e-6);  // m = (1 - beta1) g
      });
}

TEST(Padding, IsTheOriginalsOnlyWhereItsNumbersAreAskedFor) {
  const std::vector<std::size_t> sizes{3, 5};
  const auto exchanged = [&](const Options& options) {
    std::vector<std::size_t> counts;
    train_two(
        options, sizes, 0, [](Worker&, int, int) {},
        [&](Worker& worker) {
          for (const auto& each : worker.worker_errors()) counts.push_back(each.size());
        });
    return counts;
  };
  EXPECT_EQ(exchanged(short_options(Kind::kOneBitLamb)), std::vector<std::size_t>{8});
  EXPECT_EQ(exchanged(short_options(Kind::kOneBitAdam)), std::vector<std::size_t>{8});
  EXPECT_EQ(exchanged(compat(short_options(Kind::kOneBitLamb))), std::vector<std::size_t>{16});
  EXPECT_EQ(exchanged(compat(short_options(Kind::kOneBitAdam))), (std::vector<std::size_t>{16, 16}));
}

/// One rank, no noise to average.
TEST(OneRank, UpdatesTheMomentumOfZeroOneAdamInEveryStep) {
  for (const bool original : {false, true}) {
    Options options = short_options(Kind::kZeroOneAdam);
    options.deepspeed_compat = original;
    options.var_update_scaler = 1;
    ASSERT_TRUE(ok(run_local_ranks(1, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(options, {20}, communicator);
      bool stale = false;
      for (int step = 1; step <= 12; ++step) {
        const auto before = worker.state(0, "exp_avg");
        ONEBIT_RETURN_IF_ERROR(worker.step(step));
        stale = stale || same_bits(before, worker.state(0, "exp_avg"));
      }
      EXPECT_EQ(stale, original);
      return Status();
    })));
  }
}

TEST(FreezeStep, OfOneWorksAndOfZeroIsRefused) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    Options options = short_options(kind);
    options.freeze_step = 1;
    const auto ends = train(3, options, 40);
    for (const auto& end : ends) EXPECT_TRUE(same_bits(end, ends[0]));
    for (const float w : ends[0]) ASSERT_TRUE(std::isfinite(w));
    EXPECT_FALSE(validate(compat(options)).ok());
    options.freeze_step = 0;
    EXPECT_FALSE(validate(options).ok());
  }
}

TEST(TensorWithoutAGradient, CountsAsZeros) {
  for (const Kind kind : kAllKinds) {
    std::array<std::vector<float>, 2> ends;
    for (const bool null : {false, true}) {
      train_two(
          short_options(kind), {100, 30}, 45,
          [&](Worker& worker, int step, int rank) {
            if (rank == 1 && step % 3 == 0) {
              std::fill(worker.gradients.begin() + 100, worker.gradients.end(), 0.0F);
              worker.pointers[1] = null ? nullptr : worker.gradients.data() + 100;
            } else {
              worker.pointers[1] = worker.gradients.data() + 100;
            }
          },
          [&](Worker& worker) { ends[null ? 1 : 0] = worker.parameters; });
    }
    EXPECT_TRUE(same_bits(ends[0], ends[1])) << name_of(kind);
  }
}

TEST(FirstGradient, MovesWeights) {
  for (const Kind kind : kAllKinds) {
    std::vector<float> start, end;
    train_two(
        short_options(kind), {100}, 0, [](Worker&, int, int) {}, [&](Worker& w) { start = w.parameters; });
    train_two(
        short_options(kind), {100}, 1, [](Worker&, int, int) {}, [&](Worker& w) { end = w.parameters; });
    for (std::size_t i = 0; i < start.size(); ++i) EXPECT_NE(start[i], end[i]);
  }
}

TEST(WeightDecay, DoesNotLeakIntoTheMomentumOfZeroOneAdam) {
  for (const bool original : {false, true}) {
    Options options = short_options(Kind::kZeroOneAdam);
    options.deepspeed_compat = original;
    options.all.weight_decay = 1;
    options.all.lr = 1e-3;
    ASSERT_TRUE(ok(run_local_ranks(1, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(options, {64}, communicator);
      for (int step = 1; step <= 150; ++step) {
        worker.set_gradients(step);
        if (step > 31) std::fill(worker.gradients.begin(), worker.gradients.end(), 0.0F);
        ONEBIT_RETURN_IF_ERROR(worker.take());
      }
      double m = 0, decay = 0;
      const auto momentum = worker.state(0, "exp_avg");
      const auto variance = worker.state(0, "exp_avg_sq");
      for (std::size_t i = 0; i < momentum.size(); ++i) {
        m += std::abs(static_cast<double>(momentum[i]));
        decay +=
            std::sqrt(static_cast<double>(variance[i])) * std::abs(static_cast<double>(worker.parameters[i]));
      }
      if (original) {
        EXPECT_GT(m, 0.5 * decay);
      } else {
        EXPECT_LT(m, 0.05 * decay);
      }
      return Status();
    })));
  }
}

}  // namespace
}  // namespace onebit::testing
