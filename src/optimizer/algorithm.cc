#include "optimizer/algorithm.h"

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
