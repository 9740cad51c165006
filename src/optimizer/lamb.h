// LAMB (arXiv 1904.00962, algorithm 2), in the form of 1-bit LAMB's warm-up (arXiv 2104.06069, algorithm 1).
//
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   u = m^ / (sqrt(v^) + eps) + decay w
//   c = clip(||w|| / ||u||, min_coeff, max_coeff)       per tensor, w before the step
//   w = w - lr c u
//
// g is the mean gradient of all ranks; m^ and v^ as in adam.h. Where a norm is 0, c is 1, clipped too
// (deepspeed_compat: not clipped).
//
// Two passes, as c needs all of u: one reads x, m, v, w and writes m, v; one reads m, v, w and writes w.
// Threads: as Core's.
#pragma once

#include <vector>

#include "optimizer/algorithm.h"

namespace onebit::optimizer {

class Lamb : public Algorithm {
 public:
  explicit Lamb(Core& core) : Algorithm(core), numbers_(core.tensors()), rules_(core.tensors()) {}
  Plan plan() const override { return Plan::kMean; }
  void prepare(double gradient_scale) override;
  void finish(double gradient_scale) override;
  Status fetch_numbers() override;
  double coefficient(std::size_t tensor) const override { return numbers_[tensor].coefficient; }

  /// As they were when they were fetched.
  const LambNumbers& numbers(std::size_t tensor) const { return numbers_[tensor]; }

 protected:
  /// Steps all tensors by the coefficients that the results of `norms` come to. `averages`: they enter L.
  void step_by(Pass norms, bool averages);
  std::vector<LambNumbers> numbers_;

 private:
  std::vector<LambRule> rules_;
};

}  // namespace onebit::optimizer
