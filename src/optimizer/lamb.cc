#include "optimizer/lamb.h"

namespace onebit::optimizer {

void Lamb::prepare(double /*gradient_scale*/) {
  gather_gradients();
}

void Lamb::finish(double gradient_scale) {
  core_.reset_scalars(gradient_scale);
  core_.correct_bias(core_.step + 1, core_.step + 1);
  step_by(Pass::kLambNorms, core_.options().kind == Kind::kOneBitLamb);
}

void Lamb::step_by(Pass norms, bool averages) {
  core_.run(norms);
  const Options& options = core_.options();
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const GroupOptions& group = core_.group(i);
    rules_[i] = {.lr = core_.lr(i),
                 .weight_decay = group.weight_decay,
                 .min_coeff = group.min_coeff,
                 .max_coeff = group.max_coeff,
                 .coeff_beta = options.coeff_beta,
                 .factor_min = options.factor_min,
                 .factor_max = options.factor_max,
                 .factor_threshold = options.factor_threshold,
                 .averages = averages,
                 .frozen = stage_ == Stage::kCompressed,
                 .by_norms = options.factor_by_norms(),
                 .compat = core_.compat(),
                 .masked = core_.job(i).masked};
  }
  core_.runner().choose_steps(rules_, core_.jobs(), numbers_);
  core_.run(Pass::kApply);
}

Status Lamb::fetch_numbers() {
  return core_.runner().fetch_numbers(numbers_);
}

}  // namespace onebit::optimizer
