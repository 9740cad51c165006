// What LAMB and 1-bit LAMB make of a tensor's norms: the coefficient of its learning rate, by the equations
// and in the notation of lamb.h and onebit_lamb.h.
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
  double first_weights = 0;   ///< W
  double reference = 0;       ///< the sum that M is made of
  double frozen_steps = 0;
};

/// The compressed steps after which residuals, and with them the noise in m, are about as large as they will
/// be, and those after them whose ||m|| make M.
constexpr double kSettlingSteps = 10;
constexpr double kReferenceSteps = 20;

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
  bool by_norms = false;  ///< Options::norm_factor
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

/// ||w|| / ||u||, clipped; 1 where one of them is 0.
ONEBIT_HOST_DEVICE inline double ratio_of(const LambRule& rule, double weights, double update) {
  const bool has_ratio = weights != 0 && update != 0;
  const double c = has_ratio ? weights / update : 1;
  return has_ratio || !rule.compat ? clamped(c, rule.min_coeff, rule.max_coeff) : c;
}

/// c of a full-precision step, from ||w||^2 and ||u||^2 of kLambNorms.
ONEBIT_HOST_DEVICE inline double trust_ratio(const LambRule& rule, const JobResult& result,
                                             LambNumbers& numbers) {
  const double update = sqrt(result.second);
  const double c = ratio_of(rule, sqrt(result.first), update);
  if (rule.averages && (rule.compat ? c != 1 : update != 0)) {
    const double rest = 1 - rule.coeff_beta;
    numbers.average = product(rule.coeff_beta, numbers.average) + product(rest, c);
    numbers.average_weight = product(rule.coeff_beta, numbers.average_weight) + rest;
  }
  return c;
}

/// f by norms, from ||m||^2 and ||w||^2 of kNorms.
ONEBIT_HOST_DEVICE inline double factor_by_norms(const LambRule& rule, const JobResult& result,
                                                 LambNumbers& numbers) {
  const double momentum = sqrt(result.first);
  const double weights = sqrt(result.second);
  double relative = 1;  // ||m|| / M
  if (numbers.frozen_steps == 0) numbers.first_weights = weights;
  if (numbers.frozen_steps < kSettlingSteps + kReferenceSteps) {
    if (numbers.frozen_steps >= kSettlingSteps) numbers.reference += momentum;
    numbers.frozen_steps += 1;
  } else if (numbers.reference > 0) {
    relative = product(momentum, kReferenceSteps) / numbers.reference;
  }
  const double coefficient = frozen_coefficient(rule, numbers);
  if (coefficient == 0 || numbers.first_weights == 0) return 1;
  const double update = numbers.first_weights / coefficient;  // ||u|| at the freeze
  const double first_decay = product(rule.weight_decay, numbers.first_weights);
  const double decay = product(rule.weight_decay, weights);
  const double rest = product(update, update) - product(first_decay, first_decay);
  const double direction = rest > 0 ? product(product(relative, relative), rest) : 0;
  return ratio_of(rule, weights, sqrt(direction + product(decay, decay))) / coefficient;
}

/// The paper's f, from ||p||^2, ||u||^2 and the largest ratio of kLambFrozen.
ONEBIT_HOST_DEVICE inline double factor_by_variance(const LambRule& rule, const JobResult& result) {
  double f = rule.masked && result.largest == 0 ? 1 : static_cast<double>(result.largest);
  if (rule.weight_decay > 0) {
    const double update = sqrt(result.second);
    const double ratio = update > 0 ? sqrt(result.first) / update : 1;
    const double rho = ratio < 1 ? ratio : 1;
    f = product(f, rho) + (1 - rho);
  }
  return clamped(f, rule.factor_min, rule.factor_max);
}

/// L f of a compressed step.
ONEBIT_HOST_DEVICE inline double frozen_ratio(const LambRule& rule, const JobResult& result,
                                              LambNumbers& numbers) {
  const double f = rule.by_norms ? factor_by_norms(rule, result, numbers) : factor_by_variance(rule, result);
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
