#include "optimizer/onebit_lamb.h"

#include <cmath>

namespace onebit::optimizer {

Result<std::unique_ptr<Algorithm>> OneBitLamb::create(Core& core) {
  std::unique_ptr<OneBitLamb> made(new OneBitLamb(core));
  if (!made->by_norms_) {
    ONEBIT_ASSIGN_OR_RETURN(made->fresh_, core.create_array(&Arrays::f));
  }
  return std::unique_ptr<Algorithm>(std::move(made));
}

void OneBitLamb::prepare(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) return Lamb::prepare(gradient_scale);
  core_.reset_scalars(gradient_scale);
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    Scalars& scalars = core_.job(i).scalars;
    scalars.momentum_factor = static_cast<float>(1 / scales_[i].stored);
    scalars.exchange_scale = static_cast<float>(scales_[i].sent);
  }
  core_.run(Pass::kMomentum);
  core_.pad_with_momentum();
}

void OneBitLamb::finish(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) return Lamb::finish(gradient_scale);
  core_.swap_momentum();
  if (core_.compat()) core_.apply_masks(&Arrays::m);
  core_.reset_scalars(1);
  core_.bound_moves();
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    Scalars& scalars = core_.job(i).scalars;
    scalars.previous_factor = static_cast<float>(1 / scales_[i].stored);
    scalars.momentum_factor = static_cast<float>(1 / scales_[i].sent);
    scales_[i].stored = scales_[i].sent;
  }
  step_by(by_norms_ ? Pass::kNorms : Pass::kLambFrozen, false);
}

Status OneBitLamb::advance() {
  if (stage_ != Stage::kWarmUp) return Status();
  ONEBIT_ASSIGN_OR_RETURN(const bool now, monitor_.says_freeze());
  return now ? freeze() : Status();
}

Status OneBitLamb::freeze() {
  ONEBIT_RETURN_IF_ERROR(enter_compressed_stage());
  if (!by_norms_) core_.space().copy(fresh_.data(), core_.v().data(), core_.v().size());
  return choose_scales();
}

Status OneBitLamb::choose_scales() {
  core_.run(Pass::kNorms);
  ONEBIT_RETURN_IF_ERROR(core_.fetch_results());
  double sum = 0;
  std::size_t counted = 0;
  const auto rms = [&](const Job& job) {
    return job.count == 0 ? 0 : std::sqrt(job.result.first / static_cast<double>(job.count));
  };
  for (const Job& job : core_.jobs()) {
    const double q = rms(job);
    sum += q;
    if (q > 0) ++counted;
  }
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    const double q = rms(core_.job(i));
    scales_[i].sent = q > 0 ? sum / static_cast<double>(counted) / q : 1;
  }
  return Status();
}

void OneBitLamb::visit_numbers(const NumberVisitor& visit) {
  Lamb::visit_numbers(visit);
  monitor_.visit_numbers(visit);
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    LambNumbers& own = numbers_[i];
    for (double* number :
         {&own.average, &own.average_weight, &own.last_factor, &own.first_weights, &own.reference,
          &own.frozen_steps, &scales_[i].sent, &scales_[i].stored, &own.coefficient}) {
      visit(*number);
    }
  }
}

std::vector<StateArray> OneBitLamb::arrays() {
  auto all = Lamb::arrays();
  if (!by_norms_) all.push_back({&fresh_, true});
  return all;
}

Status OneBitLamb::restored() {
  return stage_ == Stage::kCompressed ? core_.mask_zero_variance() : Status();
}

const Array* OneBitLamb::find_array(std::string_view name, std::size_t tensor, double& factor) {
  const bool fresh = name == "exp_avg_sq_fresh" && !by_norms_;
  const Array* const found = fresh ? &fresh_ : Lamb::find_array(name, tensor, factor);
  factor = name == "exp_avg" ? 1 / scales_[tensor].stored : 1;
  return found;
}

}  // namespace onebit::optimizer
