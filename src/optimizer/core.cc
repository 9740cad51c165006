#include "optimizer/core.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "codec/convert.h"

namespace onebit::optimizer {
namespace {

void read_parameters(const TensorSpec& tensor, float* to) {
  const auto* from = static_cast<const std::uint16_t*>(tensor.parameters);
  for (std::size_t i = 0; i < tensor.count; ++i) {
    to[i] =
        tensor.type == DataType::kFloat16 ? codec::half_to_float(from[i]) : codec::bfloat16_to_float(from[i]);
  }
}

}  // namespace

Result<std::unique_ptr<Core>> Core::create(const Options& options, std::vector<TensorSpec> tensors,
                                           std::unique_ptr<Exchange> exchange) {
  ONEBIT_RETURN_IF_ERROR(validate(options));
  ONEBIT_ASSIGN_OR_RETURN(Layout layout, Layout::create(options, std::move(tensors), exchange->ranks()));
  std::unique_ptr<Core> made(new Core(options, std::move(layout), std::move(exchange)));
  ONEBIT_RETURN_IF_ERROR(made->allocate());
  return made;
}

Status Core::allocate() {
  const std::size_t elements = layout_.elements();
  ONEBIT_ASSIGN_OR_RETURN(x_, Array::create(elements));
  ONEBIT_ASSIGN_OR_RETURN(m_, Array::create(elements));
  ONEBIT_ASSIGN_OR_RETURN(v_, Array::create(elements));
  ONEBIT_ASSIGN_OR_RETURN(masters_, Array::create(layout_.has_masters() ? elements : 0));
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
      read_parameters(tensor, job.arrays.w);
    }
    job.gradient_type = tensor.gradient_type;
    if (!compat()) job.gradient_mask = tensor.mask;
    jobs_.push_back(job);
    counts.push_back(tensor.count);
  }
  for (std::size_t unit = 0; unit < layout_.units().size(); ++unit) {
    unit_names_.push_back(fmt::format("{}/{}", options_.name, unit));
  }
  runner_ = make_host_runner(*exchange_, counts);
  for (const Layout::Unit& unit : layout_.units()) {
    if (alone() || !options_.compresses()) break;
    ONEBIT_ASSIGN_OR_RETURN(auto residual,
                            collective::Residual::create(unit.padded, DataType::kFloat32, ReduceOp::kAvg,
                                                         exchange_->rank(), exchange_->ranks()));
    residuals_.push_back(std::move(residual));
  }
  return Status();
}

Result<Array> Core::create_array(float* Arrays::*member) {
  ONEBIT_ASSIGN_OR_RETURN(Array array, Array::create(layout_.elements()));
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

void Core::swap_momentum() {
  std::swap(x_, m_);
  for (Job& job : jobs_) std::swap(job.arrays.x, job.arrays.m);
}

void Core::apply_masks(float* Arrays::*member) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const std::uint8_t* const mask = layout_.tensors()[i].mask;
    if (mask == nullptr) continue;
    float* const array = jobs_[i].arrays.*member;
    for (std::size_t k = 0; k < jobs_[i].count; ++k) {
      if (mask[k] == 0) array[k] = 0;
    }
  }
}

void Core::pad_with_zeros() {
  for (const Layout::Unit& unit : layout_.units()) {
    std::fill(x_.data() + unit.begin + unit.used, x_.data() + unit.begin + unit.padded, 0.0F);
  }
}

void Core::pad_with_momentum() {
  for (const Layout::Unit& unit : layout_.units()) {
    const std::size_t at = unit.begin + unit.used;
    std::copy(m_.data() + at, m_.data() + unit.begin + unit.padded, x_.data() + at);
  }
}

Status Core::exchange_mean() {
  return alone() ? Status() : exchange_->mean(x_.data(), x_.size());
}

Status Core::exchange_compressed() {
  if (alone()) return Status();
  for (std::size_t i = 0; i < layout_.units().size(); ++i) {
    const Layout::Unit& unit = layout_.units()[i];
    ONEBIT_RETURN_IF_ERROR(exchange_->compressed_mean(x_.data() + unit.begin, unit.padded, unit_names_[i],
                                                      compat(), residuals_[i]));
  }
  return Status();
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

void Core::set_gradients(std::span<const void* const> gradients) {
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    jobs_[i].gradient = gradients.empty() ? nullptr : gradients[i];
}

void Core::clear_residuals() {
  for (auto& residual : residuals_) {
    std::fill_n(residual.worker_error.data(), residual.worker_error.size(), 0.0F);
    std::fill_n(residual.owner_error.data(), residual.owner_error.size(), 0.0F);
    residual.in_call = false;
  }
}

void Core::round_parameters() {
  const Passes& passes = find_passes(exchange_->implementation());
  for (const Job& job : jobs_) {
    if (job.narrow_parameters != nullptr) {
      passes.narrow(job.narrow_type, job.arrays.w, job.count, job.narrow_parameters);
    }
  }
}

std::size_t Core::memory() const {
  std::size_t bytes = x_.bytes() + m_.bytes() + v_.bytes() + masters_.bytes() + extra_bytes_;
  for (const auto& residual : residuals_)
    bytes += residual.worker_error.bytes() + residual.owner_error.bytes();
  return bytes;
}

}  // namespace onebit::optimizer
