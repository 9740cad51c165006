#include "optimizer/adam.h"

#include <cmath>

namespace onebit::optimizer {

void Adam::prepare(double /*gradient_scale*/) {
  gather_gradients();
}

void Adam::finish(double gradient_scale) {
  core_.reset_scalars(gradient_scale);
  if (core_.options().bias_correction) correct_bias(core_, core_.step + 1);
  core_.run(Pass::kAdam);
}

void correct_bias(Core& core, std::int64_t t) {
  for (std::size_t i = 0; i < core.tensors(); ++i) {
    const GroupOptions& group = core.group(i);
    Scalars& scalars = core.job(i).scalars;
    scalars.momentum_factor = static_cast<float>(1 / (1 - std::pow(group.beta1, static_cast<double>(t))));
    scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(group.beta2, static_cast<double>(t))));
  }
}

}  // namespace onebit::optimizer
