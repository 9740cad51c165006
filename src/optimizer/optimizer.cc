#include "optimizer/optimizer.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "optimizer/checkpoint.h"

namespace onebit::optimizer {
namespace {

constexpr double kRatioBeta = 0.9;
constexpr double kClippingEps = 1e-6;

}  // namespace

Result<std::unique_ptr<Optimizer>> Optimizer::create(const Options& options, std::vector<TensorSpec> tensors,
                                                     std::shared_ptr<Exchange> exchange) {
  ONEBIT_ASSIGN_OR_RETURN(auto core, Core::create(options, std::move(tensors), std::move(exchange)));
  if (options.deepspeed_compat) core->step = 1;  // the original's throw-away step
  std::unique_ptr<Optimizer> made(new Optimizer(std::move(core)));
  ONEBIT_ASSIGN_OR_RETURN(made->algorithm_, make_algorithm(*made->core_));
  return made;
}

Status Optimizer::step(std::span<const void* const> gradients, bool* skipped) {
  *skipped = false;
  if (!gradients.empty() && gradients.size() != core_->tensors()) {
    return Status::error(Code::kInvalidArgument, "{} gradients for {} tensors", gradients.size(),
                         core_->tensors());
  }
  const Status status = take_step(gradients, skipped);
  core_->forget_gradients();
  return status.with_context(options().name);
}

Status Optimizer::take_step(std::span<const void* const> gradients, bool* skipped) {
  if (!compared_) ONEBIT_RETURN_IF_ERROR(compare_tensors());
  const Plan plan = algorithm_->plan();
  const bool clips = options().gradient_clipping > 0;
  ONEBIT_RETURN_IF_ERROR(core_->set_gradients(gradients));
  Agreement agreement;
  double scale = 1;
  if ((clips && plan != Plan::kMean) || plan == Plan::kNothing) {
    core_->run(Pass::kCheck);
    ONEBIT_RETURN_IF_ERROR(agree(agreement));
    const auto ranks = static_cast<double>(core_->exchange().ranks());
    if (clips) {
      const double ratio = norm_ratio_ > 0 ? norm_ratio_ : 1;
      scale = clipping_factor(core_->compat() ? agreement.norms / ranks
                                              : ratio * std::sqrt(agreement.squares / ranks));
    }
    if (agreement.skips == 0) algorithm_->prepare(scale);
  } else {
    algorithm_->prepare(scale);
    ONEBIT_RETURN_IF_ERROR(agree(agreement));
  }
  if (agreement.skips != 0) {
    ++skipped_steps_;
    *skipped = true;
    return Status();
  }
  const double mean_square = agreement.squares / static_cast<double>(core_->exchange().ranks());
  if (plan == Plan::kMean) ONEBIT_RETURN_IF_ERROR(core_->exchange_mean());
  if (plan == Plan::kCompressed) ONEBIT_RETURN_IF_ERROR(core_->exchange_compressed());
  if (clips && plan == Plan::kMean) {
    core_->run(Pass::kExchangedNorm);
    ONEBIT_RETURN_IF_ERROR(core_->fetch_results());
    const double norm = std::sqrt(squared_norm());
    scale = clipping_factor(norm);
    if (mean_square > 0) {
      const double ratio = norm / std::sqrt(mean_square);
      norm_ratio_ = norm_ratio_ > 0 ? kRatioBeta * norm_ratio_ + (1 - kRatioBeta) * ratio : ratio;
    }
  }
  core_->mean_square = scale * scale * mean_square;
  algorithm_->finish(scale);
  ++core_->step;
  return algorithm_->advance();
}

void Optimizer::log_bad_gradient() const {
  for (std::size_t i = 0; i < core_->tensors(); ++i) {
    const float largest = core_->job(i).result.largest;
    if (largest <= kLargestGradient) continue;
    log(LogLevel::kInfo, "optimizer '{}': step skipped, as rank {} has a gradient of {} in tensor '{}'",
        options().name, core_->exchange().rank(), largest, core_->layout().tensors()[i].name);
    return;
  }
}

double Optimizer::squared_norm() const {
  double sum = 0;
  for (const Job& job : core_->jobs()) sum += job.result.first;
  return sum;
}

double Optimizer::clipping_factor(double norm) const {
  return std::min(1.0, options().gradient_clipping / (norm + kClippingEps));
}

Status Optimizer::agree(Agreement& agreement) {
  const Plan plan = algorithm_->plan();
  struct {
    std::int64_t step;
    std::int64_t stage_and_plan;
  } position{core_->step, static_cast<std::int64_t>(stage()) * 256 + static_cast<std::int64_t>(plan)};
  const auto& rates = core_->learning_rates();
  const XXH32_hash_t seed = XXH32(&position, sizeof position, 0);
  const double word = XXH32(rates.data(), rates.size() * sizeof rates[0], seed);
  agreement.word = word;
  ONEBIT_RETURN_IF_ERROR(core_->runner().agree(core_->jobs(), agreement));
  log_bad_gradient();
  if (agreement.word != word * static_cast<double>(core_->exchange().ranks()))
    return explain_difference(plan);
  return Status();
}

Status Optimizer::explain_difference(Plan plan) {
  constexpr std::size_t kBytes = 256;
  const std::size_t ranks = core_->exchange().ranks();
  constexpr std::array<const char*, 3> kPlans{"full precision", "1 bit", "local"};
  std::string mine = formatted("step {} ({}, {}), learning rates", core_->step + 1,
                               stage() == Stage::kWarmUp ? "warm-up" : "compressed stage",
                               kPlans[static_cast<std::size_t>(plan)]);
  for (const double rate : core_->learning_rates()) append_formatted(mine, " {}", rate);
  mine.resize(kBytes);
  std::string all(ranks * kBytes, '\0');
  ONEBIT_RETURN_IF_ERROR(core_->exchange().all_gather(mine.data(), all.data(), kBytes));
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const char* const theirs = all.data() + rank * kBytes;
    if (std::memcmp(theirs, all.data(), kBytes) == 0) continue;
    return Status::error(Code::kInvalidUsage,
                         "rank {} is at {}, rank 0 at {}; they must be equal on all ranks", rank,
                         std::string_view(theirs, strnlen(theirs, kBytes)),
                         std::string_view(all.data(), strnlen(all.data(), kBytes)));
  }
  return Status(Code::kInvalidUsage, "the learning rates of some ranks differ from the others'");
}

Status Optimizer::compare_tensors() {
  auto lines = core_->layout().describe(options());
  if (std::string own = core_->exchange().describe(); !own.empty()) lines.push_back(std::move(own));
  std::string mine;
  for (const std::string& line : lines) append_formatted(mine, "{}\n", line);
  Exchange& exchange = core_->exchange();
  const std::array<std::uint64_t, 2> digest{mine.size(), XXH64(mine.data(), mine.size(), 0)};
  std::vector<std::array<std::uint64_t, 2>> digests(exchange.ranks());
  ONEBIT_RETURN_IF_ERROR(exchange.all_gather(digest.data(), digests.data(), sizeof digest));
  if (std::all_of(digests.begin(), digests.end(), [&](const auto& each) { return each == digests[0]; })) {
    compared_ = true;
    return Status();
  }
  std::size_t longest = 0;
  for (const auto& each : digests) longest = std::max<std::size_t>(longest, each[0]);
  std::string padded = mine;
  padded.resize(longest);
  std::string all(longest * exchange.ranks(), '\0');
  ONEBIT_RETURN_IF_ERROR(exchange.all_gather(padded.data(), all.data(), longest));
  for (std::size_t rank = 1; rank < exchange.ranks(); ++rank) {
    std::string_view first(all.data(), digests[0][0]);
    std::string_view other(all.data() + rank * longest, digests[rank][0]);
    while (first != other) {
      const std::string_view due = first.substr(0, first.find('\n'));
      const std::string_view got = other.substr(0, other.find('\n'));
      if (due != got) {
        return Status::error(Code::kInvalidUsage,
                             "rank {} has {} where rank 0 has {}; it must be equal on all ranks", rank,
                             got.empty() ? "no more tensors" : got, due.empty() ? "no more tensors" : due);
      }
      first.remove_prefix(due.size() + 1);
      other.remove_prefix(got.size() + 1);
    }
  }
  return Status(Code::kInternalError, "descriptions of tensors differ in nothing but their checksum");
}

Status Optimizer::set_learning_rate(std::size_t group, double lr) {
  ONEBIT_RETURN_IF_ERROR(validate_learning_rate(lr));
  auto& rates = core_->learning_rates();
  if (group >= rates.size()) {
    return Status::error(Code::kInvalidArgument, "group {} of {}", group, rates.size());
  }
  rates[group] = lr;
  return Status();
}

Status Optimizer::freeze() {
  return algorithm_->freeze();
}

Result<double> Optimizer::coefficient(std::size_t tensor) {
  if (tensor >= core_->tensors()) {
    return Status::error(Code::kInvalidArgument, "tensor {} of {}", tensor, core_->tensors());
  }
  ONEBIT_RETURN_IF_ERROR(algorithm_->fetch_numbers());
  return algorithm_->coefficient(tensor);
}

Status Optimizer::read_state(std::size_t tensor, std::string_view name, std::span<float> to) {
  if (tensor >= core_->tensors()) {
    return Status::error(Code::kInvalidArgument, "tensor {} of {}", tensor, core_->tensors());
  }
  double factor = 1;
  const Array* const array = algorithm_->find_array(name, tensor, factor);
  if (array == nullptr) {
    return Status::error(Code::kInvalidArgument, "{} has no state '{}'", name_of(options().kind), name);
  }
  const std::size_t count = core_->job(tensor).count;
  if (to.size() != count) {
    return Status::error(Code::kInvalidArgument, "the tensor has {} elements, not {}", count, to.size());
  }
  const float* const from = array->data() + core_->layout().offset(tensor);
  ONEBIT_RETURN_IF_ERROR(core_->space().read(to.data(), from, to.size_bytes()));
  for (float& value : to) value *= static_cast<float>(factor);
  return Status();
}

void Optimizer::visit_numbers(const Algorithm::NumberVisitor& visit) {
  visit_integer(visit, core_->step);
  visit_integer(visit, skipped_steps_);
  visit(norm_ratio_);
  for (double& rate : core_->learning_rates()) visit(rate);
  algorithm_->visit_numbers(visit);
}

Status Optimizer::save(const std::string& directory) {
  const bool whole = !core_->exchange().usable().ok();  // some rank may never write its own
  return Checkpoint(*this).save(directory, whole).with_context(options().name);
}

Status Optimizer::save_whole(const std::string& directory) {
  return Checkpoint(*this).save(directory, true).with_context(options().name);
}

Status Optimizer::load(const std::string& directory) {
  return Checkpoint(*this).load(directory).with_context(options().name);
}

}  // namespace onebit::optimizer
