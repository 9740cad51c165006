#include "optimizer/variance_scale.h"

#include <algorithm>
#include <cmath>

namespace onebit::optimizer {
namespace {

constexpr double kLargestRoot = 4;

}  // namespace

void VarianceScale::Average::enter(double beta, double value) {
  sum = beta * sum + (1 - beta) * value;
  weight = beta * weight + (1 - beta);
}

VarianceScale::VarianceScale(Core& core) : core_(core), ranks_(core.exchange().ranks()) {
  for (std::size_t i = 0; i < core.tensors(); ++i) beta2_ = std::max(beta2_, core.group(i).beta2);
}

void VarianceScale::see(bool variance_changed) {
  if (!core_.options().factor_by_norms()) return;
  if (measuring_) return measure_anew(core_.mean_square);
  all_.enter(beta2_, core_.mean_square);
  if (variance_changed) variance_.enter(beta2_, core_.mean_square);
  if (!(variance_.value() > 0)) return;
  root_ = std::clamp(std::sqrt(all_.value() / variance_.value()), 1 / kLargestRoot, kLargestRoot);
}

void VarianceScale::measure_anew(double square) {
  fresh_sum_ += square;
  if (static_cast<double>(++fresh_steps_) < 1 / (1 - beta2_)) return;
  const double before = all_.value();
  const double change = before > 0 ? fresh_sum_ / static_cast<double>(fresh_steps_) / before : 1;
  all_.sum *= change;
  variance_.sum *= change;
  measuring_ = false;
}

void VarianceScale::set_scalars() {
  for (Job& job : core_.jobs()) job.scalars.root_scale *= static_cast<float>(root_);
}

void VarianceScale::visit_numbers(const Algorithm::NumberVisitor& visit) {
  for (double* number : {&all_.sum, &all_.weight, &variance_.sum, &variance_.weight, &root_, &fresh_sum_}) {
    visit(*number);
  }
  visit_integer(visit, ranks_);
  visit_integer(visit, fresh_steps_);
  visit_integer(visit, measuring_);
}

void VarianceScale::restored() {
  const std::size_t ranks = core_.exchange().ranks();
  if (ranks_ == ranks) return;
  ranks_ = ranks;
  measuring_ = true;
  fresh_sum_ = 0;
  fresh_steps_ = 0;
}

}  // namespace onebit::optimizer
