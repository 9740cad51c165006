#include "optimizer/adam.h"

namespace onebit::optimizer {

void Adam::prepare(double /*gradient_scale*/) {
  gather_gradients();
}

void Adam::finish(double gradient_scale) {
  core_.reset_scalars(gradient_scale);
  core_.correct_bias(core_.step + 1, core_.step + 1);
  core_.run(Pass::kAdam);
}

}  // namespace onebit::optimizer
