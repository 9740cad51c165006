// What a variance that stands still is read as: its shape stays, its size follows the gradients. Ours, in no
// paper.
//
// With s the ranks' mean ||g||^2 of all tensors (clipped as v sees it), which the agreement on a step brings
// anyway, two averages are kept: S of all steps, and S_v of those in which v changes, so that S_v is for s
// what v is for an element's g^2:
//
//   S = beta2 S + (1 - beta2) s,   sqrt(v) is read as sqrt(v) root,   root = sqrt(S / S_v)
//
// with beta2 the largest of all groups, both averages corrected for their start at 0, and root within 1/4
// and 4. While v changes in every step root is 1; without Options::norm_factor it always is: then, where
// gradients shrink after the freeze, steps are too small ever after.
//
// A rank's ||g|| has the noise of its own part of the batch, which is another with another number of ranks:
// after a load by other ranks root stands still for 1 / (1 - beta2) steps, and both averages are brought to
// what s is then. Invariant: depends only on what is equal on all ranks. Threads: as Core's.
#pragma once

#include <cstdint>

#include "optimizer/algorithm.h"

namespace onebit::optimizer {

class VarianceScale {
 public:
  explicit VarianceScale(Core& core);
  /// After a step.
  void see(bool variance_changed);
  double root() const { return root_; }
  /// Multiplies root into the scalars of all tensors.
  void set_scalars();
  void visit_numbers(const Algorithm::NumberVisitor& visit);
  /// After the numbers have been set.
  void restored();

 private:
  struct Average {
    double sum = 0;
    double weight = 0;  ///< of its terms: 1 - beta2^k
    void enter(double beta, double value);
    double value() const { return weight > 0 ? sum / weight : 0; }
  };
  /// In the steps after a load by other ranks.
  void measure_anew(double square);

  Core& core_;
  double beta2_ = 0;
  Average all_, variance_;
  double root_ = 1;
  std::size_t ranks_;  ///< whose gradients are in the averages
  double fresh_sum_ = 0;
  std::int64_t fresh_steps_ = 0;
  bool measuring_ = false;
};

}  // namespace onebit::optimizer
