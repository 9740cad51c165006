// What ranks agree on in a step, made of the results of a pass by the same function on the host and on a
// device.
//
// Invariant: both give the same bits. Plain data.
#pragma once

#include <cmath>

#include "optimizer/job.h"
#include "optimizer/lamb_rule.h"

namespace onebit::optimizer {

/// A rank's own; summed over ranks by the exchange.
struct Agreement {
  double skips = 0;    ///< 1 when the rank has a gradient that must not be used
  double squares = 0;  ///< ||g||^2; 0 of a rank that skips: it may not be a number
  double norms = 0;    ///< ||g||
  double word = 0;     ///< where the rank stands: equal on all
};
constexpr std::size_t kAgreementNumbers = 4;
static_assert(sizeof(Agreement) == kAgreementNumbers * sizeof(double));

/// Tensor after tensor, in their order.
ONEBIT_HOST_DEVICE inline void enter(Agreement& own, const JobResult& result) {
  if (!(result.largest <= kLargestGradient)) own.skips = 1;
  own.squares = own.squares + result.first;
}
ONEBIT_HOST_DEVICE inline void close(Agreement& own) {
  if (own.skips != 0) own.squares = 0;
  own.norms = sqrt(own.squares);
}

}  // namespace onebit::optimizer
