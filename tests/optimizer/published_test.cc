// The original's numbers on a problem of five weights: two tensors that no partition divides, so that
// padding, and what padding does to scales, is in every number. deepspeed_compat gives them to the last
// printed digit.

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "optimizer/onebit_lamb.h"
#include "optimizer/training.h"

namespace onebit::testing {
namespace {

/// Weights after a step of the original, whose step 1 is its throw-away call.
using Weights = std::map<int, std::array<double, 5>>;

void expect_weights(Options options, const Weights& due, const std::function<void(Worker&, int)>& look = {}) {
  options.deepspeed_compat = true;
  options.all.lr = 0.1;
  options.all.weight_decay = 0.01;
  options.freeze_step = 4;
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int rank, collective::Communicator& communicator) -> Status {
    Worker worker(options, {3, 2}, communicator);
    ONEBIT_RETURN_IF_ERROR(worker.status);
    worker.parameters = {0.5F, -0.25F, 0.125F, 0, 0};
    for (int step = 2; step <= due.rbegin()->first; ++step) {
      for (int i = 0; i < 5; ++i) {
        const float x = static_cast<float>((7 * i + 5 * rank + 3 * (step - 2)) % 11 - 5) / 8;
        worker.gradients[static_cast<std::size_t>(i)] = i < 3 ? x : 4 * x;
      }
      ONEBIT_RETURN_IF_ERROR(worker.take());
      if (rank != 0) continue;
      if (due.count(step) != 0) {
        for (std::size_t i = 0; i < 5; ++i) {
          EXPECT_NEAR(worker.parameters[i], due.at(step)[i], 1e-6) << "step " << step << ", weight " << i;
        }
      }
      if (look) look(worker, step);
    }
    return Status();
  })));
}

TEST(Published, OneBitLambWithPadding) {
  Options options = optimizer::default_options(Kind::kOneBitLamb);
  options.norm_factor = false;
  expect_weights(options,
                 {{2, {.533024, -.216898, .091911, -.316228, .316228}},
                  {4, {.629658, -.254104, .140259, -.394790, .367139}},
                  {5, {.634806, -.261408, .132941, -.400107, .360716}},
                  {6, {.639567, -.268164, .139700, -.405024, .366638}},
                  {8, {.639938, -.273598, .140281, -.401472, .362367}},
                  {11, {.649505, -.268425, .126654, -.398285, .359166}}},
                 [](Worker& worker, int step) {
                   const auto& lamb = dynamic_cast<optimizer::OneBitLamb&>(worker->algorithm());
                   if (step == 5) {
                     EXPECT_NEAR(lamb.numbers(0).average, .040742, 1e-6);
                     EXPECT_NEAR(lamb.numbers(1).average, .028659, 1e-6);
                     EXPECT_NEAR(lamb.scale(0), 3.394333, 1e-6);
                     EXPECT_NEAR(lamb.scale(1), .586376, 1e-6);
                   }
                   if (step != 11) return;
                   EXPECT_NEAR(lamb.numbers(0).last_factor, .768419, 1e-6);
                   EXPECT_NEAR(lamb.numbers(1).last_factor, .615845, 1e-6);
                   // The padding is exchanged, and stays in the momentum.
                   const float* const padding = worker->core().m().data() + 5;
                   for (int i = 0; i < 11; ++i) EXPECT_NEAR(padding[i], i < 3 ? -.050503 : -.003239, 1e-6);
                 });
}

TEST(Published, OneBitAdamWithPadding) {
  expect_weights(optimizer::default_options(Kind::kOneBitAdam),
                 {{4, {1.380141, -.156744, .101098, -.873197, .689552}},
                  {5, {1.507167, -.338175, -.080564, -.977312, .815240}},
                  {8, {1.722758, -.527261, .109750, -1.117702, .931758}},
                  {11, {2.081974, -.369227, -.405798, -.956209, .738605}}});
}

TEST(Published, ZeroOneAdamWithPadding) {
  Options options = optimizer::default_options(Kind::kZeroOneAdam);
  options.var_freeze_step = 5;
  options.var_update_scaler = 2;
  options.local_step_scaler = 2;
  options.local_step_clipper = 2;
  expect_weights(options, {{4, {1.380141, -.156744, .101098, -.873197, .689552}},
                           {5, {1.575245, -.383935, .316507, -1.107800, .818951}},
                           {7, {1.955794, -.450116, .189650, -1.015705, .944710}},
                           {8, {2.096560, -.669519, .373139, -.943295, 1.047929}},
                           {10, {1.922622, -.398413, .146411, -.881376, .959664}}});
}

}  // namespace
}  // namespace onebit::testing
