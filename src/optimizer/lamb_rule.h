// What LAMB and 1-bit LAMB make of a tensor's norms: the coefficient of its learning rate, by the equations
// of lamb.h and onebit_lamb.h.
//
// The same function runs on the host and on a device, so that a step there need not bring its norms to the
// host. Invariant: both give the same bits, as every operation is rounded on its own in fp64. Pure functions
// on values.
#pragma once

#include <cmath>

#include "optimizer/job.h"

#ifdef __CUDACC__
#define ONEBIT_HOST_DEVICE __host__ __device__
#else
#define ONEBIT_HOST_DEVICE
#endif

namespace onebit::optimizer {

/// What a tensor carries from step to step.
struct LambNumbers {
  double coefficient = 1;     ///< of the last step: c, or L f
  double average = 0;         ///< the sum that L is made of
  double average_weight = 0;  ///< the weights of its terms: 1 - coeff_beta^k
  double last_factor = 1;     ///< f
};

/// What holds for a tensor in a step.
struct LambRule {
  double lr = 0;
  double weight_decay = 0;
  double min_coeff = 0;
  double max_coeff = 0;
  double coeff_beta = 0;
  double factor_min = 0;
  double factor_max = 0;
  double factor_threshold = 0;
  bool averages = false;  ///< 1-bit LAMB's warm-up: c enters L
  bool frozen = false;    ///< 1-bit LAMB's compressed stage
  bool compat = false;    ///< deepspeed_compat
  bool masked = false;    ///< the results are those of a masked pass
};

/// a b, which nothing contracts with a sum.
ONEBIT_HOST_DEVICE inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
ONEBIT_HOST_DEVICE inline double clamped(double value, double low, double high) {
  return value < low ? low : value > high ? high : value;
}

/// L as the compressed stage uses it.
ONEBIT_HOST_DEVICE inline double frozen_coefficient(const LambRule& rule, const LambNumbers& numbers) {
  if (rule.compat) return numbers.average;
  return numbers.average_weight > 0 ? numbers.average / numbers.average_weight
                                    : clamped(1, rule.min_coeff, rule.max_coeff);
}

/// c of a full-precision step, from ||w||^2 and ||u||^2 of kLambNorms.
ONEBIT_HOST_DEVICE inline double trust_ratio(const LambRule& rule, const JobResult& result,
                                             LambNumbers& numbers) {
  const double weights = sqrt(result.first);
  const double update = sqrt(result.second);
  const bool has_ratio = weights != 0 && update != 0;
  double c = has_ratio ? weights / update : 1;
  if (has_ratio || !rule.compat) c = clamped(c, rule.min_coeff, rule.max_coeff);
  if (rule.averages && (rule.compat ? c != 1 : update != 0)) {
    const double rest = 1 - rule.coeff_beta;
    numbers.average = product(rule.coeff_beta, numbers.average) + product(rest, c);
    numbers.average_weight = product(rule.coeff_beta, numbers.average_weight) + rest;
  }
  return c;
}

/// L f of a compressed step, from ||p||^2, ||u||^2 and the largest ratio of kLambFrozen.
ONEBIT_HOST_DEVICE inline double frozen_ratio(const LambRule& rule, const JobResult& result,
                                              LambNumbers& numbers) {
  double f = rule.masked && result.largest == 0 ? 1 : static_cast<double>(result.largest);
  if (rule.weight_decay > 0) {
    const double update = sqrt(result.second);
    const double ratio = update > 0 ? sqrt(result.first) / update : 1;
    const double rho = ratio < 1 ? ratio : 1;
    f = product(f, rho) + (1 - rho);
  }
  f = clamped(f, rule.factor_min, rule.factor_max);
  const double last = numbers.last_factor;
  numbers.last_factor = clamped(f, last * (1 - rule.factor_threshold), last * (1 + rule.factor_threshold));
  return frozen_coefficient(rule, numbers) * numbers.last_factor;
}

/// Updates the numbers; gives what the update is multiplied with: the learning rate times the coefficient.
ONEBIT_HOST_DEVICE inline float choose_step(const LambRule& rule, const JobResult& result,
                                            LambNumbers& numbers) {
  numbers.coefficient =
      rule.frozen ? frozen_ratio(rule, result, numbers) : trust_ratio(rule, result, numbers);
  return static_cast<float>(rule.lr * numbers.coefficient);
}

}  // namespace onebit::optimizer
