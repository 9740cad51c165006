// 1-bit Adam (arXiv 2102.02888, algorithm 1).
//
// Warm-up, freeze_step steps: Adam (adam.h). Then, with v frozen and C[] the error-compensated 1-bit mean
// over ranks:
//
//   m = C[beta1 m + (1 - beta1) g]         g is the rank's own gradient
//   w = w - lr (m / (sqrt(v) root + eps) + decay w)
//
// Bias correction, which the paper does not have, is that of Adam in the warm-up; at the freeze it becomes
// part of m and v. root, which the paper does not have either, is VarianceScale's.
//
// The paper's numbers: beta1 0.9, beta2 0.999, eps 1e-8; BERT-Large is frozen after 15-20 % of its steps.
// Frozen where v is 0: no momentum (deepspeed_compat: m / eps); elsewhere m / (sqrt(v) + eps) is bounded as
// Core::bound_moves says.
//
// Passes when frozen: one reads g, m and writes x; after the exchange one reads x (now m), v, w and writes w.
// Threads: as Core's.
#pragma once

#include "optimizer/adam.h"
#include "optimizer/variance_monitor.h"
#include "optimizer/variance_scale.h"

namespace onebit::optimizer {

class OneBitAdam final : public Adam {
 public:
  explicit OneBitAdam(Core& core) : Adam(core), monitor_(core), scale_(core) {}
  Plan plan() const override { return stage_ == Stage::kWarmUp ? Plan::kMean : Plan::kCompressed; }
  void prepare(double gradient_scale) override;
  void finish(double gradient_scale) override;
  Status advance() override;
  Status freeze() override;
  void visit_numbers(const NumberVisitor& visit) override;
  Status restored() override;
  double coefficient(std::size_t /*tensor*/) const override { return 1 / scale_.root(); }

 private:
  VarianceMonitor monitor_;
  VarianceScale scale_;
};

}  // namespace onebit::optimizer
