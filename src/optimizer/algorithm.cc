#include "optimizer/algorithm.h"

#include "base/log.h"
#include "optimizer/adam.h"
#include "optimizer/lamb.h"
#include "optimizer/onebit_adam.h"
#include "optimizer/onebit_lamb.h"
#include "optimizer/zero_one_adam.h"

namespace onebit::optimizer {

Status Algorithm::freeze() {
  return Status::error(Code::kInvalidUsage, "{} has no compressed stage", name_of(core_.options().kind));
}

void Algorithm::gather_gradients() {
  core_.reset_scalars(1);
  core_.run(Pass::kGather);
  core_.pad_with_zeros();
}

Status Algorithm::enter_compressed_stage() {
  const std::string& name = core_.options().name;
  const std::int64_t steps = core_.step - (core_.compat() ? 1 : 0);
  if (stage_ != Stage::kWarmUp) {
    return Status::error(Code::kInvalidUsage, "optimizer '{}' is in its compressed stage already", name);
  }
  if (steps < 1) {
    return Status::error(Code::kInvalidUsage,
                         "optimizer '{}' has taken no step: without one there is no variance to freeze",
                         name);
  }
  stage_ = Stage::kCompressed;
  core_.settle_bias(steps, steps);
  if (core_.exchange().rank() == 0) {
    log(LogLevel::kInfo, "optimizer '{}': the variance is frozen after {} steps, the next ones go in 1 bit",
        name, steps);
  }
  return core_.mask_zero_variance();
}

void Algorithm::visit_numbers(const NumberVisitor& visit) {
  visit_integer(visit, stage_);
}

std::vector<StateArray> Algorithm::arrays() {
  return {{&core_.m(), true}, {&core_.v(), true}};
}

const Array* Algorithm::find_array(std::string_view name, std::size_t /*tensor*/, double& factor) {
  factor = 1;
  if (name == "exp_avg") return &core_.m();
  if (name == "exp_avg_sq") return &core_.v();
  return nullptr;
}

Result<std::unique_ptr<Algorithm>> make_algorithm(Core& core) {
  switch (core.options().kind) {
    case Kind::kLamb:
      return std::unique_ptr<Algorithm>(std::make_unique<Lamb>(core));
    case Kind::kAdam:
      return std::unique_ptr<Algorithm>(std::make_unique<Adam>(core));
    case Kind::kOneBitLamb:
      return OneBitLamb::create(core);
    case Kind::kOneBitAdam:
      return std::unique_ptr<Algorithm>(std::make_unique<OneBitAdam>(core));
    case Kind::kZeroOneAdam:
      return ZeroOneAdam::create(core);
  }
  return Status(Code::kInternalError, "no such optimizer");
}

}  // namespace onebit::optimizer
