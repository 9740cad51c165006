#include "optimizer/options.h"

#include <cmath>

namespace onebit::optimizer {
namespace {

constexpr double kMost = 1e15;

/// A range as a check and in words.
struct Range {
  double low;
  bool low_open;
  double high;
  bool high_open;
  const char* text;
  bool holds(double value) const {
    return std::isfinite(value) && (low_open ? value > low : value >= low) &&
           (high_open ? value < high : value <= high);
  }
};
constexpr Range kNotNegative{0, false, kMost, false, "a finite number from 0"};
constexpr Range kPositive{0, true, kMost, false, "a finite number above 0"};
constexpr Range kFraction{0, false, 1, true, "from 0 to below 1"};
constexpr Range kCount{1, false, kMost, false, "a whole number from 1"};

Status check(const char* name, double value, const Range& range) {
  if (range.holds(value)) return Status();
  return Status::error(Code::kInvalidArgument, "{} is {}; it must be {}", name, value, range.text);
}

Status check_group(const Options& options, const GroupOptions& group) {
  ONEBIT_RETURN_IF_ERROR(check("lr", group.lr, kNotNegative));
  ONEBIT_RETURN_IF_ERROR(check("betas[0]", group.beta1, kFraction));
  ONEBIT_RETURN_IF_ERROR(check("betas[1]", group.beta2, kFraction));
  ONEBIT_RETURN_IF_ERROR(check("eps", group.eps, {0x1p-126, false, 1, false, "from 1.2e-38 to 1"}));
  ONEBIT_RETURN_IF_ERROR(check("weight_decay", group.weight_decay, kNotNegative));
  if (!options.is_lamb()) return Status();
  ONEBIT_RETURN_IF_ERROR(check("max_coeff", group.max_coeff, kPositive));
  return check("min_coeff", group.min_coeff, {0, false, group.max_coeff, false, "from 0 to max_coeff"});
}

Status check_freezing(const Options& options) {
  if (options.freeze_step == Options::kAutomatic) {
    if (!options.deepspeed_compat) return Status();
    return Status(Code::kInvalidArgument,
                  "freeze_step is automatic, which deepspeed_compat does not know; set a number");
  }
  if (options.deepspeed_compat) {
    return check(
        "freeze_step", static_cast<double>(options.freeze_step),
        {2, false, kMost, false,
         "at least 2 in deepspeed_compat, where counting starts at 1 before the first step: without a full "
         "step there is no variance to divide by"});
  }
  return check(
      "freeze_step", static_cast<double>(options.freeze_step),
      {1, false, kMost, false,
       "a whole number from 1, or automatic: without a full step there is no variance to divide by"});
}

}  // namespace

std::string_view name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kLamb:
      return "Lamb";
    case Kind::kAdam:
      return "Adam";
    case Kind::kOneBitLamb:
      return "OneBitLamb";
    case Kind::kOneBitAdam:
      return "OneBitAdam";
    case Kind::kZeroOneAdam:
      return "ZeroOneAdam";
  }
  return "unknown";
}

Options default_options(Kind kind) {
  Options options;
  options.kind = kind;
  return options;
}

Status validate(const Options& options) {
  if (name_of(options.kind) == "unknown") {
    return Status::error(Code::kInvalidArgument, "optimizer type {} is unknown",
                         static_cast<int>(options.kind));
  }
  if (options.groups.empty()) {
    ONEBIT_RETURN_IF_ERROR(check_group(options, options.all));
  }
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    ONEBIT_RETURN_IF_ERROR(check_group(options, options.groups[i]).with_context(formatted("group {}", i)));
  }
  ONEBIT_RETURN_IF_ERROR(check("gradient_clipping", options.gradient_clipping, kNotNegative));
  if (!options.compresses() && options.deepspeed_compat) {
    return Status::error(Code::kInvalidArgument, "deepspeed_compat is for the 1-bit optimizers; {} has none",
                         name_of(options.kind));
  }
  if (options.freezes()) ONEBIT_RETURN_IF_ERROR(check_freezing(options));
  if (options.kind == Kind::kOneBitLamb) {
    ONEBIT_RETURN_IF_ERROR(check("coeff_beta", options.coeff_beta, kFraction));
    ONEBIT_RETURN_IF_ERROR(check("factor_max", options.factor_max, kPositive));
    ONEBIT_RETURN_IF_ERROR(check("factor_min", options.factor_min,
                                 {0, true, options.factor_max, false, "above 0, up to factor_max"}));
    ONEBIT_RETURN_IF_ERROR(
        check("factor_threshold", options.factor_threshold, {0, true, 1, true, "above 0 and below 1"}));
  }
  if (options.kind == Kind::kZeroOneAdam) {
    ONEBIT_RETURN_IF_ERROR(check("var_freeze_step", static_cast<double>(options.var_freeze_step), kCount));
    ONEBIT_RETURN_IF_ERROR(
        check("var_update_scaler", static_cast<double>(options.var_update_scaler), kCount));
    ONEBIT_RETURN_IF_ERROR(
        check("local_step_scaler", static_cast<double>(options.local_step_scaler), kCount));
    ONEBIT_RETURN_IF_ERROR(
        check("local_step_clipper", static_cast<double>(options.local_step_clipper), kCount));
  }
  return Status();
}

Status validate_learning_rate(double lr) {
  return check("lr", lr, kNotNegative);
}

}  // namespace onebit::optimizer
