// What LAMB's coefficients are made of, in numbers that are exact.
#include "optimizer/lamb_rule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace onebit::testing {
namespace {

using optimizer::choose_step;
using optimizer::JobResult;
using optimizer::kReferenceSteps;
using optimizer::kSettlingSteps;
using optimizer::LambNumbers;
using optimizer::LambRule;

constexpr LambRule kWarmUp{.lr = 1,
                           .min_coeff = 0.01,
                           .max_coeff = 100,
                           .coeff_beta = 0.5,
                           .factor_threshold = 0.5,
                           .averages = true,
                           .by_norms = true};

LambRule frozen(LambRule rule = kWarmUp) {
  rule.averages = false;
  rule.frozen = true;
  return rule;
}

JobResult norms(double first, double second) {
  return {first * first, second * second, 0};
}

/// After a warm-up with ||w|| = 8 and ||u|| = `update`, steps in which the noise comes up, and those that
/// make the reference, ||m|| = 16 and ||w|| = 8 in each.
LambNumbers after_reference(const LambRule& rule, double update) {
  LambNumbers numbers;
  choose_step(rule, norms(8, update), numbers);
  for (int step = 0; step < kSettlingSteps; ++step) choose_step(frozen(rule), norms(step, 8), numbers);
  for (int step = 0; step < kReferenceSteps; ++step) choose_step(frozen(rule), norms(16, 8), numbers);
  return numbers;
}

TEST(FactorByNorms, IsOneWhileNormsStay) {
  LambNumbers numbers = after_reference(kWarmUp, 2);
  EXPECT_EQ(numbers.coefficient, 4);  // LAMB's, 8 / 2
  EXPECT_EQ(choose_step(frozen(), norms(16, 8), numbers), 4);
  EXPECT_EQ(numbers.last_factor, 1);
}

TEST(FactorByNorms, MakesTheCoefficientOfLambWhenMomentumAndWeightsMove) {
  LambNumbers numbers = after_reference(kWarmUp, 2);
  // Half the momentum is half the update, at the same weights: twice the coefficient, in steps of half of f.
  EXPECT_EQ(choose_step(frozen(), norms(8, 8), numbers), 6);
  EXPECT_EQ(choose_step(frozen(), norms(8, 8), numbers), 8);
  EXPECT_EQ(choose_step(frozen(), norms(8, 8), numbers), 8);
  EXPECT_EQ(choose_step(frozen(), norms(16, 12), numbers), 6);
  EXPECT_EQ(choose_step(frozen(), norms(16, 2), numbers), 3);
  EXPECT_EQ(choose_step(frozen(), norms(16, 2), numbers), 1.5);
  EXPECT_EQ(choose_step(frozen(), norms(16, 2), numbers), 1);
}

TEST(FactorByNorms, CountsWeightDecayOnce) {
  LambRule rule = kWarmUp;
  rule.weight_decay = 0.5;
  // ||p||^2 = 5^2 - (0.5 8)^2 = 3^2
  LambNumbers numbers = after_reference(rule, 5);
  EXPECT_EQ(numbers.coefficient, 8.0 / 5);
  // No momentum is left: the update is decay alone, and the coefficient 1 / decay.
  EXPECT_EQ(choose_step(frozen(rule), norms(0, 8), numbers), 2);
}

TEST(FactorByNorms, KeepsTheCoefficientWithinItsBounds) {
  LambRule rule = kWarmUp;
  rule.min_coeff = 0.5;
  rule.max_coeff = 32;
  LambNumbers numbers = after_reference(rule, 2);
  for (int step = 0; step < 9; ++step) choose_step(frozen(rule), norms(1e-3, 8), numbers);
  EXPECT_EQ(numbers.coefficient, 32);
  for (int step = 0; step < 9; ++step) choose_step(frozen(rule), norms(1e6, 8), numbers);
  EXPECT_EQ(numbers.coefficient, 0.5);
}

TEST(FactorByNorms, OfATensorWithoutWeightsOrMomentumIsOne) {
  LambRule rule = kWarmUp;
  rule.min_coeff = 0.5;
  LambNumbers never;  // never had a gradient
  EXPECT_EQ(choose_step(rule, norms(0, 0), never), 1);
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(choose_step(frozen(rule), norms(0, 0), never), 1);
  }
  EXPECT_EQ(never.last_factor, 1);
}

}  // namespace
}  // namespace onebit::testing
