// Adam with decoupled weight decay (arXiv 1412.6980, algorithm 1; decay as in arXiv 1711.05101, algorithm 2).
//
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   w = w - lr (m^ / (sqrt(v^) + eps) + decay w)
//
// g is the mean gradient of all ranks. With bias_correction m^ = m / (1 - beta1^t), v^ = v / (1 - beta2^t);
// without m^ = m and v^ = v.
//
// One pass: reads x, m, v, w, writes m, v, w. Threads: as Core's.
#pragma once

#include "optimizer/algorithm.h"

namespace onebit::optimizer {

class Adam : public Algorithm {
 public:
  using Algorithm::Algorithm;
  Plan plan() const override { return Plan::kMean; }
  void prepare(double gradient_scale) override;
  void finish(double gradient_scale) override;
};

}  // namespace onebit::optimizer
