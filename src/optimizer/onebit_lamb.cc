#include "optimizer/onebit_lamb.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace onebit::optimizer {

Result<std::unique_ptr<Algorithm>> OneBitLamb::create(Core& core) {
  std::unique_ptr<OneBitLamb> made(new OneBitLamb(core));
  ONEBIT_ASSIGN_OR_RETURN(made->fresh_, core.create_array(&Arrays::f));
  return std::unique_ptr<Algorithm>(std::move(made));
}

void OneBitLamb::averaged(std::size_t tensor, bool moved) {
  const double c = coefficients_[tensor];
  if (core_.compat() ? c == 1 : !moved) return;
  const double beta = core_.options().coeff_beta;
  TensorNumbers& own = numbers_[tensor];
  own.average = beta * own.average + (1 - beta) * c;
  own.average_weight = beta * own.average_weight + (1 - beta);
}

double OneBitLamb::frozen_coefficient(std::size_t tensor) const {
  const TensorNumbers& own = numbers_[tensor];
  if (core_.compat()) return own.average;
  const GroupOptions& group = core_.group(tensor);
  return own.average_weight > 0 ? own.average / own.average_weight
                                : std::clamp(1.0, group.min_coeff, group.max_coeff);
}

void OneBitLamb::prepare(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) return Lamb::prepare(gradient_scale);
  core_.reset_scalars(gradient_scale);
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    Scalars& scalars = core_.job(i).scalars;
    scalars.momentum_factor = static_cast<float>(1 / numbers_[i].stored_scale);
    scalars.exchange_scale = static_cast<float>(numbers_[i].scale);
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
    scalars.previous_factor = static_cast<float>(1 / numbers_[i].stored_scale);
    scalars.momentum_factor = static_cast<float>(1 / numbers_[i].scale);
    numbers_[i].stored_scale = numbers_[i].scale;
  }
  core_.run(Pass::kLambFrozen);
  const Options& options = core_.options();
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    Job& job = core_.job(i);
    double& last = numbers_[i].last_factor;
    double f = job.masked && job.result.largest == 0 ? 1 : static_cast<double>(job.result.largest);
    if (core_.group(i).weight_decay > 0) {
      const double update = std::sqrt(job.result.second);
      const double rho = update > 0 ? std::min(1.0, std::sqrt(job.result.first) / update) : 1;
      f = f * rho + (1 - rho);
    }
    f = std::clamp(f, options.factor_min, options.factor_max);
    last = std::clamp(f, last * (1 - options.factor_threshold), last * (1 + options.factor_threshold));
    coefficients_[i] = frozen_coefficient(i) * last;
    job.scalars.step = static_cast<float>(core_.lr(i) * coefficients_[i]);
  }
  core_.run(Pass::kApply);
}

Status OneBitLamb::advance() {
  return stage_ == Stage::kWarmUp && monitor_.says_freeze() ? freeze() : Status();
}

Status OneBitLamb::freeze() {
  ONEBIT_RETURN_IF_ERROR(check_freeze(core_, stage_));
  stage_ = Stage::kCompressed;
  std::copy(core_.v().data(), core_.v().data() + core_.v().size(), fresh_.data());
  choose_scales();
  core_.mask_zero_variance();
  return Status();
}

void OneBitLamb::choose_scales() {
  core_.run(Pass::kMomentumNorm);
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
    numbers_[i].scale = q > 0 ? sum / static_cast<double>(counted) / q : 1;
  }
}

void OneBitLamb::visit_numbers(const NumberVisitor& visit) {
  Lamb::visit_numbers(visit);
  monitor_.visit_numbers(visit);
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    TensorNumbers& own = numbers_[i];
    for (double* number : {&own.average, &own.average_weight, &own.last_factor, &own.scale, &own.stored_scale,
                           &coefficients_[i]}) {
      visit(*number);
    }
  }
}

std::vector<StateArray> OneBitLamb::arrays() {
  auto all = Lamb::arrays();
  all.push_back({&fresh_, true});
  return all;
}

void OneBitLamb::restored() {
  if (stage_ == Stage::kCompressed) core_.mask_zero_variance();
}

const Array* OneBitLamb::find_array(std::string_view name, std::size_t tensor, double& factor) {
  const Array* const found = name == "exp_avg_sq_fresh" ? &fresh_ : Lamb::find_array(name, tensor, factor);
  factor = name == "exp_avg" ? 1 / numbers_[tensor].stored_scale : 1;
  return found;
}

}  // namespace onebit::optimizer
