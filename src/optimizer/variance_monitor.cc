#include "optimizer/variance_monitor.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace onebit::optimizer {
namespace {

constexpr double kStable = 0.96;

bool is_near_one(double ratio) {
  return std::min(ratio, 1 / ratio) >= kStable;
}

}  // namespace

VarianceMonitor::VarianceMonitor(Core& core) : core_(core) {
  for (std::size_t i = 0; i < core.tensors(); ++i) beta2_ = std::max(beta2_, core.group(i).beta2);
  const double distance = 1 / (1 - beta2_);
  every_ = std::max<std::int64_t>(1, std::llround(distance / kSamples));
}

Result<bool> VarianceMonitor::says_freeze() {
  const Options& options = core_.options();
  if (options.freeze_step != Options::kAutomatic) return core_.step >= options.freeze_step;
  return core_.step % every_ == 0 ? is_stable() : false;
}

Result<bool> VarianceMonitor::is_stable() {
  core_.run(Pass::kVarianceNorm);
  ONEBIT_RETURN_IF_ERROR(core_.fetch_results());
  Sample now;
  for (const Job& job : core_.jobs()) now.norm += job.result.first;
  for (const double lr : core_.learning_rates()) now.lr = std::max(now.lr, lr);
  Sample& slot = samples_[static_cast<std::size_t>(taken_) % kSamples];
  const Sample before = slot;
  slot = now;
  if (++taken_ <= static_cast<std::int64_t>(kSamples) || !(before.norm > 0) || !(now.norm > 0)) return false;
  const double ratio = now.norm / before.norm;
  const auto t = static_cast<double>(core_.step);
  const double growth =
      (1 - std::pow(beta2_, t)) / (1 - std::pow(beta2_, t - static_cast<double>(distance())));
  const bool stable = is_near_one(ratio) && is_near_one(ratio / growth) && now.lr <= before.lr;
  if (core_.exchange().rank() == 0) {
    log(LogLevel::kInfo, "optimizer '{}': step {}, the variance is {:.4f} times that of {} steps before: {}",
        core_.options().name, core_.step, ratio, distance(),
        stable ? "stable, it is frozen" : "not stable yet");
  }
  return stable;
}

void VarianceMonitor::visit_numbers(const Algorithm::NumberVisitor& visit) {
  visit_integer(visit, taken_);
  for (Sample& sample : samples_) {
    visit(sample.norm);
    visit(sample.lr);
  }
}

}  // namespace onebit::optimizer
