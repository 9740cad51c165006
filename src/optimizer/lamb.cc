#include "optimizer/lamb.h"

#include <algorithm>
#include <cmath>

#include "optimizer/adam.h"

namespace onebit::optimizer {

void Lamb::prepare(double /*gradient_scale*/) {
  gather_gradients();
}

void Lamb::finish(double gradient_scale) {
  core_.reset_scalars(gradient_scale);
  if (core_.options().bias_correction) correct_bias(core_, core_.step + 1);
  core_.run(Pass::kLambNorms);
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    const GroupOptions& group = core_.group(i);
    Job& job = core_.job(i);
    const double weights = std::sqrt(job.result.first);
    const double update = std::sqrt(job.result.second);
    const bool has_ratio = weights != 0 && update != 0;
    double c = has_ratio ? weights / update : 1;
    if (has_ratio || !core_.compat()) c = std::clamp(c, group.min_coeff, group.max_coeff);
    coefficients_[i] = c;
    averaged(i, update != 0);
    job.scalars.step = static_cast<float>(core_.lr(i) * c);
  }
  core_.run(Pass::kApply);
}

}  // namespace onebit::optimizer
