// The state machine: when the warm-up ends, which steps exchange what, and which transitions there are not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "optimizer/training.h"
#include "optimizer/zero_one_adam.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using optimizer::Plan;
using optimizer::Stage;
using ::testing::HasSubstr;

Status on_one_rank(const std::function<Status(Communicator&)>& body) {
  return run_local_ranks(1, "", [&](int, Communicator& communicator) { return body(communicator); });
}

TEST(WarmUp, HasFreezeStepSteps) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    for (const bool original : {false, true}) {
      Options options = short_options(kind);
      options.deepspeed_compat = original;
      ASSERT_TRUE(ok(on_one_rank([&](Communicator& communicator) -> Status {
        Worker worker(options, {10}, communicator);
        int full = 0;
        for (int step = 1; step <= 30; ++step) {
          full += worker->algorithm().plan() == Plan::kMean ? 1 : 0;
          ONEBIT_RETURN_IF_ERROR(worker.step(step));
        }
        EXPECT_EQ(full, original ? 19 : 20);  // the original counts its throw-away step
        EXPECT_EQ(worker->stage(), Stage::kCompressed);
        return Status();
      })));
    }
  }
}

TEST(WarmUp, EndsEarlyWhenAskedButNotBeforeAStepNorTwice) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    for (const bool original : {false, true}) {
      Options options = short_options(kind);
      options.deepspeed_compat = original;
      ASSERT_TRUE(ok(on_one_rank([&](Communicator& communicator) -> Status {
        Worker worker(options, {10}, communicator);
        EXPECT_EQ(worker->freeze().code(), Code::kInvalidUsage);
        return worker.step(1);
      })));
    }
    ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(short_options(kind), {10, 20}, communicator);
      ONEBIT_RETURN_IF_ERROR(worker.step(1));
      ONEBIT_RETURN_IF_ERROR(worker->freeze());
      EXPECT_EQ(worker->stage(), Stage::kCompressed);
      const Status twice = worker->freeze();
      EXPECT_EQ(twice.code(), Code::kInvalidUsage);
      EXPECT_THAT(twice.message(), HasSubstr("compressed stage"));
      return worker.step(2);
    })));
  }
}

TEST(WarmUp, CannotBeEndedWhereThereIsNone) {
  for (const Kind kind : {Kind::kLamb, Kind::kAdam, Kind::kZeroOneAdam}) {
    ASSERT_TRUE(ok(on_one_rank([&](Communicator& communicator) -> Status {
      Worker worker(short_options(kind), {10}, communicator);
      ONEBIT_RETURN_IF_ERROR(worker.step(1));
      EXPECT_EQ(worker->freeze().code(), Code::kInvalidUsage);
      return Status();
    })));
  }
}

/// Steps of stationary noise until the stage changes, by which all ranks must agree.
std::vector<int> freeze_steps(const Options& options, int ranks, int most,
                              const std::function<float(int)>& size, const std::function<double(int)>& rate) {
  std::vector<int> frozen(static_cast<std::size_t>(ranks), 0);
  EXPECT_TRUE(ok(run_local_ranks(ranks, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, {64}, communicator);
    for (int step = 1; step <= most && worker->stage() == Stage::kWarmUp; ++step) {
      Random random(static_cast<std::uint64_t>(step * 10 + rank));
      for (float& g : worker.gradients) g = size(step) * random.unit();
      ONEBIT_RETURN_IF_ERROR(worker->set_learning_rate(0, rate(step)));
      ONEBIT_RETURN_IF_ERROR(worker.take());
      frozen[static_cast<std::size_t>(rank)] = step;
    }
    return Status();
  })));
  return frozen;
}

TEST(AutomaticFreeze, WaitsUntilTheVarianceIsStableOnAllRanks) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    Options options = short_options(kind);
    options.freeze_step = Options::kAutomatic;
    options.all.beta2 = 0.98;  // 50 steps apart
    const auto constant = [](int) { return 1.0F; };
    const auto rate = [](int) { return 1e-3; };
    const auto steady = freeze_steps(options, 3, 1000, constant, rate);
    EXPECT_THAT(steady, ::testing::Each(steady[0]));
    EXPECT_GT(steady[0], 100);  // v has come from 0 first
    EXPECT_LT(steady[0], 400);
    // Gradients that shrink all the time, and a learning rate that still rises, put it off.
    const auto shrinking = [](int step) { return std::exp(-static_cast<float>(step) / 100); };
    EXPECT_EQ(freeze_steps(options, 2, 600, shrinking, rate)[0], 600);
    const auto warming = [](int step) { return 1e-5 * std::min(step, 500); };
    EXPECT_GT(freeze_steps(options, 2, 1000, constant, warming)[0], 500);
  }
}

TEST(ZeroOneAdam, FollowsTheOriginalsSchedule) {
  // kappa 4, T_v 30, local_step_scaler 6, H 4, by the original's counter, whose first real step is 2.
  Options options = optimizer::default_options(Kind::kZeroOneAdam);
  options.deepspeed_compat = true;
  options.var_freeze_step = 30;
  options.var_update_scaler = 4;
  options.local_step_scaler = 6;
  options.local_step_clipper = 4;
  std::vector<int> full, syncs;
  ASSERT_TRUE(ok(on_one_rank([&](Communicator& communicator) -> Status {
    Worker worker(options, {10}, communicator);
    for (int t = 2; t <= 52; ++t) {
      const Plan plan = worker->algorithm().plan();
      if (plan == Plan::kMean) full.push_back(t);
      if (worker->stage() == Stage::kCompressed && plan == Plan::kCompressed) syncs.push_back(t);
      ONEBIT_RETURN_IF_ERROR(worker.step(t));
    }
    return Status();
  })));
  EXPECT_EQ(full, (std::vector<int>{2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28}));
  EXPECT_EQ(syncs, (std::vector<int>{32, 33, 34, 35, 36, 37, 38, 40, 42, 44, 48, 52}));
}

TEST(ZeroOneAdam, SyncsEveryIntervalAlsoWhenItIsNoPowerOfTwo) {
  Options options = optimizer::default_options(Kind::kZeroOneAdam);
  options.var_freeze_step = 5;
  options.local_step_scaler = 4;
  options.local_step_clipper = 3;
  std::vector<int> syncs;
  ASSERT_TRUE(ok(on_one_rank([&](Communicator& communicator) -> Status {
    Worker worker(options, {10}, communicator);
    for (int t = 1; t <= 24; ++t) {
      const bool syncing =
          worker->stage() == Stage::kCompressed && worker->algorithm().plan() == Plan::kCompressed;
      ONEBIT_RETURN_IF_ERROR(worker.step(t));
      if (syncing) syncs.push_back(t);
      EXPECT_EQ(worker->in_common(), worker->stage() == Stage::kWarmUp || syncing || t == 5);
    }
    return Status();
  })));
  EXPECT_EQ(syncs, (std::vector<int>{6, 7, 8, 9, 11, 13, 16, 19, 22}));
}

TEST(Ranks, ThatAreNotAtTheSamePointFindOut) {
  struct Case {
    const char* what;
    std::function<void(Worker&, int rank)> change;
    std::vector<const char*> words;
  };
  const Case cases[] = {
      {"learning rates",
       [](Worker& worker, int rank) {
         EXPECT_TRUE(worker->set_learning_rate(0, rank == 1 ? 0.5 : 0.25).ok());
       },
       {"rank 1", "learning rates 0.5", "0.25"}},
      {"stages",
       [](Worker& worker, int rank) {
         if (rank == 1) {
           EXPECT_TRUE(worker->freeze().ok());
         }
       },
       {"rank 1", "compressed stage", "warm-up"}},
      {"steps",
       [](Worker& worker, int rank) { worker->core().step += rank == 1 ? 1 : 0; },
       {"rank 1", "step 5", "step 4"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int rank, Communicator& communicator) -> Status {
      Worker worker(short_options(Kind::kOneBitAdam), {30}, communicator);
      for (int step = 1; step <= 3; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
      each.change(worker, rank);
      const auto before = worker.parameters;
      const Status status = worker.step(4);
      EXPECT_EQ(status.code(), Code::kInvalidUsage);
      for (const char* word : each.words) EXPECT_THAT(status.message(), HasSubstr(word));
      EXPECT_TRUE(same_bits(before, worker.parameters));
      return Status();
    })));
  }
}

TEST(Ranks, WithOtherTensorsAreToldWhichInTheFirstStep) {
  struct Case {
    std::function<void(std::vector<TensorSpec>&)> change;
    std::vector<const char*> words;
  };
  const Case cases[] = {
      {[](std::vector<TensorSpec>& tensors) { tensors[1].name = "head"; }, {"rank 2", "'head'", "'layer1'"}},
      {[](std::vector<TensorSpec>& tensors) { --tensors[1].count; },
       {"rank 2", "'layer1' of 19", "'layer1' of 20"}},
      {[](std::vector<TensorSpec>& tensors) { tensors.pop_back(); },
       {"rank 2", "no more tensors", "'layer1'"}},
      {[](std::vector<TensorSpec>& tensors) {
         tensors.push_back(tensors[0]);
         tensors.back().name = "extra";
       },
       {"rank 2", "'extra'"}},
  };
  for (const Case& each : cases) {
    ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int rank, Communicator& communicator) -> Status {
      Worker worker(short_options(Kind::kOneBitLamb), {30, 20}, communicator,
                    rank == 2 ? each.change : Worker::Change{});
      worker.pointers.resize(worker->core().tensors(), worker.gradients.data());
      const Status status = worker.step(1);
      EXPECT_EQ(status.code(), Code::kInvalidUsage);
      for (const char* word : each.words) EXPECT_THAT(status.message(), HasSubstr(word));
      return Status();
    })));
  }
}

TEST(Ranks, WithOtherHyperParametersAreToldWhich) {
  struct Case {
    Kind kind;
    const char* words;
    void (*change)(Options&);
  };
  const Case cases[] = {
      {Kind::kOneBitLamb, "weight_decay 1", [](Options& o) { o.all.weight_decay = 1; }},
      {Kind::kOneBitLamb, "betas 0.8 0.999", [](Options& o) { o.all.beta1 = 0.8; }},
      {Kind::kOneBitLamb, "coefficients 0.01 to 3", [](Options& o) { o.all.max_coeff = 3; }},
      {Kind::kOneBitLamb, "coeff_beta 0.5", [](Options& o) { o.coeff_beta = 0.5; }},
      {Kind::kOneBitLamb, "freeze_step 21", [](Options& o) { o.freeze_step = 21; }},
      {Kind::kOneBitAdam, "gradient_clipping 1", [](Options& o) { o.gradient_clipping = 1; }},
      {Kind::kOneBitAdam, "deepspeed_compat", [](Options& o) { o.deepspeed_compat = true; }},
      {Kind::kOneBitLamb, "norm_factor false", [](Options& o) { o.norm_factor = false; }},
      {Kind::kOneBitAdam, "bound_moves false", [](Options& o) { o.bound_moves = false; }},
      {Kind::kZeroOneAdam, "local_step_clipper 5", [](Options& o) { o.local_step_clipper = 5; }},
      {Kind::kAdam, "bias_correction false", [](Options& o) { o.bias_correction = false; }},
      {Kind::kAdam, "OneBitAdam", [](Options& o) { o = short_options(Kind::kOneBitAdam); }},
  };
  for (const Case& each : cases) {
    ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
      Options options = short_options(each.kind);
      if (rank == 1) each.change(options);
      Worker worker(options, {30}, communicator);
      const Status status = worker.step(1);
      EXPECT_EQ(status.code(), Code::kInvalidUsage);
      EXPECT_THAT(status.message(), HasSubstr(each.words));
      EXPECT_THAT(status.message(), HasSubstr("rank 1"));
      return Status();
    })));
  }
}

}  // namespace
}  // namespace onebit::testing
