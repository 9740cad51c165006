// When the warm-up may end: at freeze_step, or when the variance has become stable.
//
// freeze_step = auto follows 1-bit Adam (arXiv 2102.02888, section 7.1): with D = 1 / (1 - beta2) steps
// between them, ||v_t||_1 / ||v_(t-D)||_1 is at least 0.96, and the learning rate has come to its height. As
// v starts at 0 and grows, the ratio is taken the other way where it is above 1. The norm is taken D / 10
// steps apart. It depends only on what is equal on all ranks; agreement on the stage is checked at every
// step. Invariant: says_freeze is asked once a step. Threads: as Core's.
#pragma once

#include <array>
#include <cstdint>

#include "optimizer/algorithm.h"

namespace onebit::optimizer {

class VarianceMonitor {
 public:
  explicit VarianceMonitor(Core& core);
  /// After a step of the warm-up.
  Result<bool> says_freeze();
  void visit_numbers(const Algorithm::NumberVisitor& visit);

 private:
  static constexpr std::size_t kSamples = 10;
  struct Sample {
    double norm = 0;
    double lr = 0;
  };
  Result<bool> is_stable();
  /// Steps between what is compared.
  std::int64_t distance() const { return every_ * static_cast<std::int64_t>(kSamples); }

  Core& core_;
  double beta2_ = 0;                        ///< the largest of all groups
  std::int64_t every_ = 1;                  ///< steps between samples
  std::array<Sample, kSamples> samples_{};  ///< the last ones; sample k in place k mod kSamples
  std::int64_t taken_ = 0;
};

}  // namespace onebit::optimizer
