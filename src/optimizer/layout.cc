#include "optimizer/layout.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace onebit::optimizer {
namespace {

Status check_tensor(const TensorSpec& tensor, std::size_t groups) {
  if (tensor.parameters == nullptr && tensor.count != 0) {
    return Status(Code::kInvalidArgument, "its parameters must not be NULL");
  }
  if (tensor.count > (std::size_t{1} << 44)) {
    return Status::error(Code::kInvalidArgument, "its count {} is too large", tensor.count);
  }
  if (!is_compressible(tensor.type) || !is_compressible(tensor.gradient_type)) {
    return Status(Code::kInvalidArgument,
                  "parameters and gradients must be onebitFloat32, onebitFloat16 or onebitBfloat16");
  }
  if (tensor.group >= groups) {
    return Status::error(Code::kInvalidArgument, "it is of group {}, of {} groups", tensor.group, groups);
  }
  return Status();
}

/// Whether the original would exchange tensor b in one buffer with tensor a, the one before it.
bool shares_unit(const Options& options, const TensorSpec& a, const TensorSpec& b) {
  if (!options.deepspeed_compat || options.is_lamb()) return true;
  return a.group == b.group && b.type != DataType::kFloat32;
}

}  // namespace

Result<Layout> Layout::create(const Options& options, std::vector<TensorSpec> tensors, std::size_t ranks) {
  Layout made;
  const std::size_t groups = std::max<std::size_t>(1, options.groups.size());
  std::set<std::string> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorSpec& tensor = tensors[i];
    if (tensor.name.empty()) tensor.name = fmt::format("tensor {}", i);
    if (const Status status = check_tensor(tensor, groups); !status.ok()) {
      return status.with_context(fmt::format("tensor {} '{}'", i, tensor.name));
    }
    if (!names.insert(tensor.name).second) {
      return Status::error(Code::kInvalidArgument, "two tensors are named '{}'", tensor.name);
    }
    if (tensor.type != DataType::kFloat32) made.has_masters_ = true;
  }
  made.tensors_ = std::move(tensors);
  made.offsets_.resize(made.tensors_.size());
  std::vector<std::size_t> order(made.tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return made.tensors_[a].group < made.tensors_[b].group;
  });
  const std::size_t padding = options.deepspeed_compat ? ranks * std::lcm(ranks, std::size_t{8}) : 1;
  const auto close_unit = [&] {
    if (made.units_.empty()) return;
    Unit& unit = made.units_.back();
    unit.padded = (unit.used + padding - 1) / padding * padding;
    made.elements_ = unit.begin + unit.padded;
  };
  const TensorSpec* previous = nullptr;
  for (const std::size_t i : order) {
    const TensorSpec& tensor = made.tensors_[i];
    if (tensor.count == 0) {
      made.offsets_[i] = made.units_.empty() ? 0 : made.units_.back().begin + made.units_.back().used;
      continue;
    }
    if (previous == nullptr || !shares_unit(options, *previous, tensor)) {
      close_unit();
      made.units_.push_back({made.elements_, 0, 0});
    }
    Unit& unit = made.units_.back();
    made.offsets_[i] = unit.begin + unit.used;
    unit.used += tensor.count;
    previous = &tensor;
  }
  close_unit();
  return made;
}

std::vector<std::string> Layout::describe(const Options& options) const {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("optimizer {} '{}'{}, freeze_step {}, gradient_clipping {}",
                              name_of(options.kind), options.name,
                              options.deepspeed_compat ? " in deepspeed_compat" : "", options.freeze_step,
                              options.gradient_clipping));
  if (options.compresses() && !options.deepspeed_compat) {
    lines.push_back(fmt::format("bound_moves {}, norm_factor {}", options.bound_moves, options.norm_factor));
  }
  lines.push_back(fmt::format("bias_correction {}, coeff_beta {}, factors {} to {} by {}",
                              options.bias_correction, options.coeff_beta, options.factor_min,
                              options.factor_max, options.factor_threshold));
  lines.push_back(
      fmt::format("var_freeze_step {}, var_update_scaler {}, local_step_scaler {}, local_step_clipper {}",
                  options.var_freeze_step, options.var_update_scaler, options.local_step_scaler,
                  options.local_step_clipper));
  for (std::size_t i = 0; i < std::max<std::size_t>(1, options.groups.size()); ++i) {
    const GroupOptions& group = options.group(i);
    lines.push_back(fmt::format("group {}: betas {} {}, eps {}, weight_decay {}, coefficients {} to {}", i,
                                group.beta1, group.beta2, group.eps, group.weight_decay, group.min_coeff,
                                group.max_coeff));
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec& tensor = tensors_[i];
    lines.push_back(fmt::format("tensor {} '{}' of {} x {}, group {}{}", i, tensor.name, tensor.count,
                                onebit::name_of(tensor.type), tensor.group,
                                tensor.mask == nullptr ? "" : ", masked"));
  }
  return lines;
}

}  // namespace onebit::optimizer
