// DeepSpeed's section of an optimizer, as it stands in a job's JSON.
//
// Each key of a kind is a row: what it sets, or why it is accepted though it sets nothing. No exception gets
// out.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "optimizer/options.h"

namespace onebit::optimizer {
namespace {

using nlohmann::json;

/// The original's default of local_step_scaler.
constexpr std::int64_t kOriginalLocalStepScaler = 32'678;

Status wrong(std::string_view key, const json& value, std::string_view accepted) {
  return Status::error(Code::kInvalidArgument, "\"{}\": {} is not accepted; it must be {}", key, value.dump(),
                       accepted);
}

Status read_number(std::string_view key, const json& value, double& to) {
  if (!value.is_number()) return wrong(key, value, "a number");
  to = value.get<double>();
  return Status();
}

Status read_count(std::string_view key, const json& value, std::int64_t& to) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
    return wrong(key, value, "a whole number");
  }
  to = value.get<std::int64_t>();
  if (to < 0) return wrong(key, value, "a whole number from 0");
  return Status();
}

Status read_flag(std::string_view key, const json& value, bool& to) {
  if (!value.is_boolean()) return wrong(key, value, "true or false");
  to = value.get<bool>();
  return Status();
}

Result<Kind> read_kind(const json& section) {
  const auto type = section.find("type");
  if (type == section.end() || !type->is_string()) {
    return Status(Code::kInvalidArgument,
                  "\"type\" is missing: {\"type\": \"OneBitLamb\", \"params\": {...}}");
  }
  std::string lower = type->get<std::string>();
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "onebitlamb") return Kind::kOneBitLamb;
  if (lower == "onebitadam") return Kind::kOneBitAdam;
  if (lower == "zerooneadam") return Kind::kZeroOneAdam;
  if (lower == "lamb") return Kind::kLamb;
  if (lower == "adam" || lower == "adamw") return Kind::kAdam;
  return Status::error(
      Code::kInvalidArgument,
      "\"type\": \"{}\" is unknown; there are OneBitLamb, OneBitAdam, ZeroOneAdam, Lamb and Adam",
      type->get<std::string>());
}

/// A key that must have one value, as any other would have no effect.
Status only(std::string_view key, const json& value, const json& accepted, std::string_view why) {
  if (value == accepted) return Status();
  return Status::error(Code::kInvalidArgument, "\"{}\": {}: {}; remove it or set it to {}", key, value.dump(),
                       why, accepted.dump());
}

/// Keys that all kinds have; `known` is left false for others.
Status read_common(std::string_view key, const json& value, Options& options, bool& known) {
  known = true;
  if (key == "lr") return read_number(key, value, options.all.lr);
  if (key == "eps") return read_number(key, value, options.all.eps);
  if (key == "weight_decay") return read_number(key, value, options.all.weight_decay);
  if (key == "betas") {
    if (!value.is_array() || value.size() != 2) return wrong(key, value, "two numbers");
    ONEBIT_RETURN_IF_ERROR(read_number(key, value[0], options.all.beta1));
    return read_number(key, value[1], options.all.beta2);
  }
  if (key == "gradient_clipping") return read_number(key, value, options.gradient_clipping);
  if (key == "bias_correction") return read_flag(key, value, options.bias_correction);
  if (key == "amsgrad") return only(key, value, false, "there is no AMSGrad variant");
  if (key == "eps_inside_sqrt") return only(key, value, false, "eps is always added to the root");
  if (key == "max_grad_norm") return only(key, value, 0, "it has no effect; clip by \"gradient_clipping\"");
  if (options.kind == Kind::kAdam && key == "torch_adam")
    return only(key, value, false, "there is no PyTorch here");
  if (options.kind == Kind::kAdam && key == "adam_w_mode") {
    return only(key, value, true, "weight decay is always decoupled");
  }
  known = false;
  return Status();
}

/// Keys of the 1-bit kinds.
Status read_onebit(std::string_view key, const json& value, Options& options, bool& known) {
  known = options.compresses();
  if (!known) return Status();
  if (key == "deepspeed_compat") return read_flag(key, value, options.deepspeed_compat);
  if (key == "bound_moves") return read_flag(key, value, options.bound_moves);
  if (key == "norm_factor") return read_flag(key, value, options.norm_factor);
  if (key == "cuda_aware") return only(key, value, false, "no MPI is used");
  if (key == "comm_backend_name") {
    if (!value.is_string()) return wrong(key, value, "a string");
    log(LogLevel::kInfo, "\"comm_backend_name\" chooses nothing here: data goes over ONEBIT_TRANSPORT");
    return Status();
  }
  if (key == "freeze_step" && options.freezes()) {
    if (value == "auto") {
      options.freeze_step = Options::kAutomatic;
      return Status();
    }
    if (value.is_string()) return wrong(key, value, "a whole number or \"auto\"");
    return read_count(key, value, options.freeze_step);
  }
  if (options.kind == Kind::kOneBitLamb) {
    if (key == "coeff_beta") return read_number(key, value, options.coeff_beta);
    if (key == "factor_max") return read_number(key, value, options.factor_max);
    if (key == "factor_min") return read_number(key, value, options.factor_min);
    if (key == "factor_threshold") return read_number(key, value, options.factor_threshold);
  }
  if (options.kind == Kind::kZeroOneAdam) {
    if (key == "var_freeze_step") return read_count(key, value, options.var_freeze_step);
    if (key == "var_update_scaler") return read_count(key, value, options.var_update_scaler);
    if (key == "local_step_scaler") return read_count(key, value, options.local_step_scaler);
    if (key == "local_step_clipper") return read_count(key, value, options.local_step_clipper);
  }
  known = false;
  return Status();
}

Status read_key(std::string_view key, const json& value, Options& options) {
  bool known = false;
  ONEBIT_RETURN_IF_ERROR(read_common(key, value, options, known));
  if (known) return Status();
  if (options.is_lamb() && key == "max_coeff") return read_number(key, value, options.all.max_coeff);
  if (options.is_lamb() && key == "min_coeff") return read_number(key, value, options.all.min_coeff);
  ONEBIT_RETURN_IF_ERROR(read_onebit(key, value, options, known));
  if (known) return Status();
  return Status::error(
      Code::kInvalidArgument,
      "\"{}\" is no parameter of {}; remove it, or see docs/optimizers.md for those there are", key,
      name_of(options.kind));
}

Result<Options> read_section(const json& section) {
  if (!section.is_object()) {
    return Status(Code::kInvalidArgument,
                  "it must be an object: {\"type\": \"OneBitLamb\", \"params\": {...}}");
  }
  ONEBIT_ASSIGN_OR_RETURN(const Kind kind, read_kind(section));
  Options options = default_options(kind);
  for (const auto& [key, value] : section.items()) {
    if (key == "type" || key == "params") continue;
    if (key == "legacy_fusion") {
      ONEBIT_RETURN_IF_ERROR(only(key, value, false, "there is no fusion to choose"));
      continue;
    }
    return Status::error(Code::kInvalidArgument,
                         "\"{}\" is unknown beside \"type\" and \"params\"; remove it", key);
  }
  const json params = section.value("params", json::object());
  if (!params.is_object()) return Status(Code::kInvalidArgument, "\"params\" must be an object");
  for (const auto& [key, value] : params.items()) ONEBIT_RETURN_IF_ERROR(read_key(key, value, options));
  const Options defaults;
  if (options.kind == Kind::kOneBitLamb && options.factor_by_norms() &&
      (options.factor_max != defaults.factor_max || options.factor_min != defaults.factor_min)) {
    log(LogLevel::kWarn,
        "factor_max and factor_min bound the paper's factor alone: they act with \"norm_factor\": false");
  }
  if (options.deepspeed_compat && !params.contains("local_step_scaler")) {
    options.local_step_scaler = kOriginalLocalStepScaler;
  }
  ONEBIT_RETURN_IF_ERROR(validate(options));
  return options;
}

}  // namespace

Result<Options> parse_deepspeed(std::string_view text) {
  const auto read = [&]() -> Result<Options> {
    try {
      return read_section(json::parse(text));
    } catch (const json::exception& error) {
      return Status::error(Code::kInvalidArgument, "it cannot be read as JSON: {}", error.what());
    }
  };
  auto options = read();
  if (!options.ok()) return options.status().with_context("optimizer section");
  return options;
}

}  // namespace onebit::optimizer
