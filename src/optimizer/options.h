// What an optimizer is asked to do: its kind and its hyper-parameters, under DeepSpeed's names.
//
// Invariant of validated options: every number is finite and in the range that its error message gives. Value
// types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace onebit::optimizer {

/// The C API's onebitOptimizerType_t has the same numbers.
enum class Kind : std::uint8_t { kLamb = 1, kAdam = 2, kOneBitLamb = 3, kOneBitAdam = 4, kZeroOneAdam = 5 };

/// "OneBitLamb" and the like.
std::string_view name_of(Kind kind) noexcept;

/// Hyper-parameters that groups of tensors may have their own of.
struct GroupOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double max_coeff = 10;    ///< LAMB: bounds of ||w|| / ||u||
  double min_coeff = 0.01;  ///< LAMB
};

struct Options {
  /// freeze_step: when the variance has become stable.
  static constexpr std::int64_t kAutomatic = -1;

  Kind kind = Kind::kOneBitLamb;
  GroupOptions all;
  std::vector<GroupOptions> groups;  ///< empty: one group, as `all`
  bool bias_correction = true;       ///< never in deepspeed_compat
  std::int64_t freeze_step = 100'000;
  double coeff_beta = 0.9;
  double factor_max = 4;    ///< of the paper's factor alone
  double factor_min = 0.5;  ///< the same
  double factor_threshold = 0.1;
  std::int64_t var_freeze_step = 100'000;
  std::int64_t var_update_scaler = 16;
  std::int64_t local_step_scaler = 32'768;
  std::int64_t local_step_clipper = 16;
  double gradient_clipping = 0;  ///< 0: none
  bool deepspeed_compat = false;
  bool bound_moves = true;         ///< as Core::bound_moves says; never in deepspeed_compat
  bool norm_factor = true;         ///< as onebit_lamb.h and variance_scale.h say; never in deepspeed_compat
  std::string name = "optimizer";  ///< in messages and files

  bool compresses() const { return kind >= Kind::kOneBitLamb; }
  bool corrects_bias() const { return bias_correction && !deepspeed_compat; }
  bool factor_by_norms() const { return norm_factor && !deepspeed_compat; }
  bool is_lamb() const { return kind == Kind::kLamb || kind == Kind::kOneBitLamb; }
  /// Whether freeze_step ends the warm-up.
  bool freezes() const { return kind == Kind::kOneBitLamb || kind == Kind::kOneBitAdam; }
  const GroupOptions& group(std::size_t index) const { return groups.empty() ? all : groups[index]; }
};

/// The defaults of a kind.
Options default_options(Kind kind);

/// kInvalidArgument naming the first hyper-parameter that is out of its range, and the range.
Status validate(const Options& options);

/// A learning rate alone.
Status validate_learning_rate(double lr);

/// Reads a DeepSpeed section as it stands in a job's JSON: {"type": "OneBitLamb", "params": {...}}, types in
/// any case. "freeze_step" may also be "auto"; "deepspeed_compat" and "gradient_clipping" may stand in
/// params. Keys that are unknown, or whose value would have no effect, are errors that say what to do.
Result<Options> parse_deepspeed(std::string_view json);

}  // namespace onebit::optimizer
