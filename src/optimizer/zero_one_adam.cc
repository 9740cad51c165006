#include "optimizer/zero_one_adam.h"

#include <algorithm>
#include <bit>

namespace onebit::optimizer {

Result<std::unique_ptr<Algorithm>> ZeroOneAdam::create(Core& core) {
  std::unique_ptr<ZeroOneAdam> made(new ZeroOneAdam(core));
  ONEBIT_ASSIGN_OR_RETURN(made->z_, core.create_array(&Arrays::z));
  if (!core.compat()) {
    ONEBIT_ASSIGN_OR_RETURN(made->common_, core.create_array(&Arrays::c));
  }
  for (Job& job : core.jobs()) job.masked = !core.compat();
  return std::unique_ptr<Algorithm>(std::move(made));
}

bool ZeroOneAdam::syncs() const {
  if (core_.compat()) return (core_.step + 1) % schedule_.local_step_interval == 0;
  return since_sync_ + 1 >= schedule_.local_step_interval;
}

Plan ZeroOneAdam::plan() const {
  if (stage_ == Stage::kWarmUp) {
    return (core_.step + 1) % schedule_.var_interval == 0 ? Plan::kMean : Plan::kCompressed;
  }
  return syncs() ? Plan::kCompressed : Plan::kNothing;
}

void ZeroOneAdam::set_local_scalars(double gradient_scale) {
  core_.reset_scalars(gradient_scale);
  core_.bound_moves();
  scale_.set_scalars();
  for (std::size_t i = 0; i < core_.tensors(); ++i) {
    Scalars& scalars = core_.job(i).scalars;
    const std::size_t group = core_.layout().tensors()[i].group;
    scalars.window = static_cast<float>(windows_[group] + core_.lr(i));
    scalars.accumulated_decay = core_.compat() ? scalars.weight_decay : 0;
  }
}

void ZeroOneAdam::prepare(double gradient_scale) {
  if (stage_ == Stage::kWarmUp) {
    core_.reset_scalars(gradient_scale);
    core_.bound_moves();
    core_.run(Pass::kGather);
  } else if (plan() == Plan::kCompressed) {
    set_local_scalars(gradient_scale);
    core_.run(Pass::kSyncPrepare);
  }
  core_.pad_with_zeros();
}

void ZeroOneAdam::finish(double gradient_scale) {
  const Plan done = plan();
  if (stage_ == Stage::kWarmUp) {
    core_.reset_scalars(gradient_scale);
    core_.bound_moves();
    core_.correct_bias(core_.step + 1, variance_updates() + (done == Plan::kMean ? 1 : 0));
    scale_.set_scalars();
    if (done == Plan::kMean) return core_.run(Pass::kAdam);
    if (!core_.compat()) return core_.run(Pass::kAdamKeepingVariance);
    // The original leaves the momentum of a single rank as it is.
    if (core_.alone()) return core_.run(Pass::kApply);
    core_.apply_masks(&Arrays::x);
    return core_.run(Pass::kAdamKeepingVariance);
  }
  set_local_scalars(gradient_scale);
  if (done == Plan::kNothing) return core_.run(Pass::kLocal);
  if (!core_.compat()) return core_.run(Pass::kSyncFinish);
  core_.apply_masks(&Arrays::x);
  core_.run(Pass::kSyncFinishSubtracting);
}

Status ZeroOneAdam::advance() {
  const bool exact = stage_ == Stage::kWarmUp && core_.step % schedule_.var_interval == 0;
  scale_.see(exact);
  if (stage_ == Stage::kWarmUp) {
    if (exact && ++schedule_.var_counter == core_.options().var_update_scaler) {
      schedule_.var_counter = 0;
      schedule_.var_interval = std::min(schedule_.var_interval * 2, std::int64_t{1} << 50);
    }
  } else {
    ++since_sync_;
    for (std::size_t group = 0; group < windows_.size(); ++group)
      windows_[group] += core_.learning_rates()[group];
    const bool synced = core_.compat() ? core_.step % schedule_.local_step_interval == 0
                                       : since_sync_ >= schedule_.local_step_interval;
    if (synced) {
      since_sync_ = 0;
      std::fill(windows_.begin(), windows_.end(), 0.0);
    }
    if (++schedule_.local_step_counter == core_.options().local_step_scaler) {
      schedule_.local_step_counter = 0;
      schedule_.local_step_interval =
          std::min(core_.options().local_step_clipper, schedule_.local_step_interval * 2);
    }
  }
  const std::int64_t last = core_.options().var_freeze_step + (core_.compat() ? 1 : 0);
  if (stage_ == Stage::kWarmUp && core_.step >= last) freeze_variance();
  return Status();
}

std::int64_t ZeroOneAdam::variance_updates() const {
  const int doublings = std::bit_width(static_cast<std::uint64_t>(schedule_.var_interval)) - 1;
  return doublings * core_.options().var_update_scaler + schedule_.var_counter;
}

void ZeroOneAdam::freeze_variance() {
  core_.exchange().clear_residuals();
  core_.settle_bias(core_.step, variance_updates());
  stage_ = Stage::kCompressed;
  since_sync_ = 0;
  for (Job& job : core_.jobs()) {
    if (job.arrays.c != nullptr) core_.space().copy(job.arrays.c, job.arrays.w, job.count);
  }
}

void ZeroOneAdam::visit_numbers(const NumberVisitor& visit) {
  Algorithm::visit_numbers(visit);
  for (std::int64_t* number : {&schedule_.var_interval, &schedule_.var_counter,
                               &schedule_.local_step_interval, &schedule_.local_step_counter, &since_sync_}) {
    visit_integer(visit, *number);
  }
  for (double& window : windows_) visit(window);
  scale_.visit_numbers(visit);
}

Status ZeroOneAdam::restored() {
  scale_.restored();
  return Status();
}

std::vector<StateArray> ZeroOneAdam::arrays() {
  const bool common = in_common();
  std::vector<StateArray> all{{&core_.m(), common}, {&core_.v(), true}, {&z_, common}};
  if (!core_.compat()) all.push_back({&common_, true});
  return all;
}

const Array* ZeroOneAdam::find_array(std::string_view name, std::size_t tensor, double& factor) {
  factor = 1;
  if (name == "momentum_accumulator") return &z_;
  return Algorithm::find_array(name, tensor, factor);
}

}  // namespace onebit::optimizer
