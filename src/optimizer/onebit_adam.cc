#include "optimizer/onebit_adam.h"

namespace onebit::optimizer {

void OneBitAdam::prepare(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) return Adam::prepare(gradient_scale);
  core_.reset_scalars(gradient_scale);
  core_.run(Pass::kMomentum);
  core_.pad_with_zeros();
}

void OneBitAdam::finish(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) return Adam::finish(gradient_scale);
  core_.swap_momentum();
  if (core_.compat()) core_.apply_masks(&Arrays::m);
  core_.reset_scalars(1);
  core_.bound_moves();
  scale_.set_scalars();
  core_.run(Pass::kApply);
}

Status OneBitAdam::advance() {
  scale_.see(stage_ == Stage::kWarmUp);
  if (stage_ != Stage::kWarmUp) return Status();
  ONEBIT_ASSIGN_OR_RETURN(const bool now, monitor_.says_freeze());
  return now ? freeze() : Status();
}

Status OneBitAdam::freeze() {
  return enter_compressed_stage();
}

void OneBitAdam::visit_numbers(const NumberVisitor& visit) {
  Adam::visit_numbers(visit);
  monitor_.visit_numbers(visit);
  scale_.visit_numbers(visit);
}

Status OneBitAdam::restored() {
  scale_.restored();
  return stage_ == Stage::kCompressed ? core_.mask_zero_variance() : Status();
}

}  // namespace onebit::optimizer
