#include "optimizer/core.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "codec/convert.h"

namespace onebit::optimizer {
namespace {

/// Elements that go between the state and the host at once.
constexpr std::size_t kPiece = std::size_t{1} << 20;

void widen(DataType type, const std::uint16_t* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = type == DataType::kFloat16 ? codec::half_to_float(from[i]) : codec::bfloat16_to_float(from[i]);
  }
}

/// The fp32 copy of 16-bit parameters.
Status read_parameters(const TensorSpec& tensor, Memory& memory, float* to) {
  std::vector<std::uint16_t> narrow(std::min(tensor.count, kPiece));
  std::vector<float> wide(narrow.size());
  const auto* const from = static_cast<const std::uint16_t*>(tensor.parameters);
  for (std::size_t at = 0; at < tensor.count; at += kPiece) {
    const std::size_t n = std::min(kPiece, tensor.count - at);
    ONEBIT_RETURN_IF_ERROR(memory.read(narrow.data(), from + at, n * sizeof narrow[0]));
    widen(tensor.type, narrow.data(), n, wide.data());
    ONEBIT_RETURN_IF_ERROR(memory.write(to + at, wide.data(), n * sizeof wide[0]));
  }
  return Status();
}

Status check_memory(const TensorSpec& tensor, Memory& memory) {
  if (tensor.count == 0) return Status();
  ONEBIT_RETURN_IF_ERROR(
      memory.check(tensor.parameters, size_of(tensor.type)).with_context("its parameters"));
  return tensor.mask == nullptr ? Status() : memory.check(tensor.mask, 1).with_context("its mask");
}

}  // namespace

Result<std::unique_ptr<Core>> Core::create(const Options& options, std::vector<TensorSpec> tensors,
                                           std::shared_ptr<Exchange> exchange) {
  ONEBIT_RETURN_IF_ERROR(validate(options));
  ONEBIT_ASSIGN_OR_RETURN(Layout layout, Layout::create(options, std::move(tensors), exchange->ranks()));
  std::unique_ptr<Core> made(new Core(options, std::move(layout), std::move(exchange)));
  ONEBIT_RETURN_IF_ERROR(made->allocate());
  return made;
}

Status Core::allocate() {
  const std::size_t elements = layout_.elements();
  for (const TensorSpec& tensor : layout_.tensors()) {
    ONEBIT_RETURN_IF_ERROR(check_memory(tensor, space()).with_context(formatted("tensor '{}'", tensor.name)));
  }
  ONEBIT_ASSIGN_OR_RETURN(x_, Array::create(space(), elements));
  ONEBIT_ASSIGN_OR_RETURN(m_, Array::create(space(), elements));
  ONEBIT_ASSIGN_OR_RETURN(v_, Array::create(space(), elements));
  ONEBIT_ASSIGN_OR_RETURN(masters_, Array::create(space(), layout_.has_masters() ? elements : 0));
  for (std::size_t group = 0; group < std::max<std::size_t>(1, options_.groups.size()); ++group) {
    learning_rates_.push_back(options_.group(group).lr);
  }
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < layout_.tensors().size(); ++i) {
    const TensorSpec& tensor = layout_.tensors()[i];
    const std::size_t at = layout_.offset(i);
    Job job;
    job.count = tensor.count;
    job.arrays.x = x_.data() + at;
    job.arrays.m = m_.data() + at;
    job.arrays.v = v_.data() + at;
    if (tensor.type == DataType::kFloat32) {
      job.arrays.w = static_cast<float*>(tensor.parameters);
    } else {
      job.arrays.w = masters_.data() + at;
      job.narrow_parameters = tensor.parameters;
      job.narrow_type = tensor.type;
      ONEBIT_RETURN_IF_ERROR(read_parameters(tensor, space(), job.arrays.w));
    }
    job.gradient_type = tensor.gradient_type;
    if (!compat()) job.gradient_mask = tensor.mask;
    jobs_.push_back(job);
    counts.push_back(tensor.count);
  }
  checked_gradients_.resize(jobs_.size());
  ONEBIT_ASSIGN_OR_RETURN(runner_, exchange_->make_runner(counts));
  if (alone() || !options_.compresses()) return Status();
  for (const Layout::Unit& unit : layout_.units()) {
    ONEBIT_RETURN_IF_ERROR(
        exchange_->add_unit(formatted("{}/{}", options_.name, exchange_->units()), unit.padded, compat()));
  }
  return Status();
}

Result<Array> Core::create_array(float* Arrays::*member) {
  ONEBIT_ASSIGN_OR_RETURN(Array array, Array::create(space(), layout_.elements()));
  for (std::size_t i = 0; i < jobs_.size(); ++i) jobs_[i].arrays.*member = array.data() + layout_.offset(i);
  extra_bytes_ += array.bytes();
  return array;
}

void Core::reset_scalars(double gradient_scale) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const GroupOptions& own = group(i);
    Scalars& scalars = jobs_[i].scalars;
    scalars = {};
    scalars.beta1 = static_cast<float>(own.beta1);
    scalars.rest1 = static_cast<float>(1 - own.beta1);
    scalars.inverse1 = static_cast<float>(1 / static_cast<double>(scalars.rest1));
    scalars.beta2 = static_cast<float>(own.beta2);
    scalars.rest2 = static_cast<float>(1 - own.beta2);
    scalars.eps = static_cast<float>(own.eps);
    scalars.weight_decay = static_cast<float>(own.weight_decay);
    scalars.step = static_cast<float>(lr(i));
    scalars.gradient_scale = static_cast<float>(gradient_scale);
  }
}

void Core::bound_moves() {
  if (compat() || !options_.bound_moves) return;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const double beta1 = group(i).beta1, beta2 = group(i).beta2;
    const double left = beta2 > 0 ? 1 - beta1 * beta1 / beta2 : 0;
    if (left > 0) jobs_[i].scalars.bound = static_cast<float>((1 - beta1) / std::sqrt((1 - beta2) * left));
  }
}

void Core::correct_bias(std::int64_t steps, std::int64_t updates) {
  if (!options_.corrects_bias()) return;
  const auto weight = [](double beta, std::int64_t count) {
    return 1 - std::pow(beta, static_cast<double>(count));
  };
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Scalars& scalars = jobs_[i].scalars;
    scalars.momentum_factor = static_cast<float>(1 / weight(group(i).beta1, steps));
    scalars.root_scale = static_cast<float>(1 / std::sqrt(weight(group(i).beta2, updates)));
  }
}

void Core::settle_bias(std::int64_t steps, std::int64_t updates) {
  if (!options_.corrects_bias()) return;
  reset_scalars(1);
  correct_bias(steps, updates);
  run(Pass::kCorrect);
}

void Core::swap_momentum() {
  std::swap(x_, m_);
  for (Job& job : jobs_) std::swap(job.arrays.x, job.arrays.m);
}

void Core::apply_masks(float* Arrays::*member) {
  const auto& tensors = layout_.tensors();
  if (std::all_of(tensors.begin(), tensors.end(), [](const auto& each) { return each.mask == nullptr; }))
    return;
  // The pass that gathers gradients takes the array for one.
  masked_jobs_ = jobs_;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = masked_jobs_[i];
    job.scalars = {};
    float* const array = job.arrays.*member;
    job.arrays = {.x = array};
    job.gradient = array;
    job.gradient_type = DataType::kFloat32;
    job.gradient_mask = tensors[i].mask;
  }
  runner_->run(Pass::kGather, masked_jobs_);
}

void Core::pad_with_zeros() {
  for (const Layout::Unit& unit : layout_.units()) {
    if (unit.padded != unit.used) space().zero(x_.data() + unit.begin + unit.used, unit.padded - unit.used);
  }
}

void Core::pad_with_momentum() {
  for (const Layout::Unit& unit : layout_.units()) {
    const std::size_t at = unit.begin + unit.used;
    if (unit.padded != unit.used) space().copy(x_.data() + at, m_.data() + at, unit.padded - unit.used);
  }
}

Status Core::exchange_mean() {
  if (alone()) return Status();
  ONEBIT_RETURN_IF_ERROR(exchange_->mean(x_.data(), x_.size()));
  return exchange_->complete();
}

Status Core::exchange_compressed() {
  if (alone()) return Status();
  for (std::size_t i = 0; i < layout_.units().size(); ++i) {
    ONEBIT_RETURN_IF_ERROR(exchange_->compressed_mean(x_.data() + layout_.units()[i].begin, i));
  }
  return exchange_->complete();
}

Status Core::mask_zero_variance() {
  if (compat()) return Status();
  run(Pass::kVarianceNorm);
  ONEBIT_RETURN_IF_ERROR(fetch_results());
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const auto zeros = static_cast<std::size_t>(jobs_[i].result.second);
    jobs_[i].masked = zeros != 0;
    if (zeros == 0 || exchange_->rank() != 0) continue;
    log(LogLevel::kInfo,
        "optimizer '{}': {} of {} elements of tensor '{}' have had no gradient and stay as they are",
        options_.name, zeros, jobs_[i].count, layout_.tensors()[i].name);
  }
  return Status();
}

Status Core::set_gradients(std::span<const void* const> gradients) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = jobs_[i];
    job.gradient = gradients.empty() ? nullptr : gradients[i];
    if (job.gradient == nullptr || job.gradient == checked_gradients_[i] || job.count == 0) continue;
    const Status status = space().check(job.gradient, size_of(job.gradient_type));
    if (!status.ok()) {
      return status.with_context(formatted("the gradient of tensor '{}'", layout_.tensors()[i].name));
    }
    checked_gradients_[i] = job.gradient;
  }
  return Status();
}

void Core::forget_gradients() {
  for (Job& job : jobs_) job.gradient = nullptr;
}

Status Core::read_weights(std::size_t begin, std::size_t length, float* to) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const std::size_t offset = layout_.offset(i);
    const std::size_t first = std::max(begin, offset);
    const std::size_t last = std::min(begin + length, offset + jobs_[i].count);
    if (first >= last) continue;
    ONEBIT_RETURN_IF_ERROR(space().read(to + (first - begin), jobs_[i].arrays.w + (first - offset),
                                        (last - first) * sizeof(float)));
  }
  return Status();
}

Status Core::write_weights(const float* from) {
  const Passes& passes = find_passes("");
  std::vector<std::uint16_t> narrow;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    const float* const own = from + layout_.offset(i);
    ONEBIT_RETURN_IF_ERROR(space().write(job.arrays.w, own, job.count * sizeof(float)));
    if (job.narrow_parameters == nullptr) continue;
    narrow.resize(job.count);
    passes.narrow(job.narrow_type, own, job.count, narrow.data());
    ONEBIT_RETURN_IF_ERROR(space().write(job.narrow_parameters, narrow.data(), job.count * sizeof narrow[0]));
  }
  return Status();
}

std::size_t Core::memory() const {
  return x_.bytes() + m_.bytes() + v_.bytes() + masters_.bytes() + extra_bytes_ + exchange_->residual_bytes();
}

}  // namespace onebit::optimizer
