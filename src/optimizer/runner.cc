#include "optimizer/runner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "optimizer/exchange.h"

namespace onebit::optimizer {
namespace {

/// Blocks that a thread takes at once, and the number of elements from which threads are worth waking.
constexpr std::size_t kBlocksAtOnce = 16;
constexpr std::size_t kThreadedElements = 128 * 1024;

/// The partial sums of a tensor's blocks, added up.
JobResult add_up(std::span<const Partial> partials) {
  double first[kLanes] = {};
  double second[kLanes] = {};
  std::uint32_t largest = 0;  // of numbers from 0 the bits are ordered as they are, NaN above all
  for (std::size_t block = 0; block < partials.size(); ++block) {
    first[block % kLanes] += static_cast<double>(partials[block].first);
    second[block % kLanes] += static_cast<double>(partials[block].second);
    largest = std::max(largest, std::bit_cast<std::uint32_t>(partials[block].largest));
  }
  for (std::size_t half = kLanes / 2; half >= 1; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      first[lane] += first[lane + half];
      second[lane] += second[lane + half];
    }
  }
  return {first[0], second[0], std::bit_cast<float>(largest)};
}

class HostRunner final : public Runner {
 public:
  HostRunner(HostExchange& exchange, std::span<const std::size_t> counts)
      : exchange_(exchange), passes_(find_passes(exchange.implementation())) {
    std::size_t blocks = 0;
    for (std::size_t job = 0; job < counts.size(); ++job) {
      first_block_.push_back(blocks);
      const std::size_t own = (counts[job] + kBlock - 1) / kBlock;
      for (std::size_t block = 0; block < own; block += kBlocksAtOnce) {
        items_.push_back({job, block, std::min(own, block + kBlocksAtOnce)});
      }
      blocks += own;
      elements_ += counts[job];
    }
    first_block_.push_back(blocks);
    partials_.resize(blocks);
  }

  void run(Pass pass, std::span<Job> jobs) override {
    if (elements_ < kThreadedElements) {
      for (const Item& item : items_) run_item(pass, jobs[item.job], item);
    } else {
      exchange_.parallel(items_.size(),
                         [&](std::size_t i) { run_item(pass, jobs[items_[i].job], items_[i]); });
    }
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      const std::size_t begin = first_block_[job];
      jobs[job].result = add_up({partials_.data() + begin, first_block_[job + 1] - begin});
    }
  }

  Status fetch(std::span<Job>) override { return Status(); }

  Status agree(std::span<Job> jobs, Agreement& agreement) override {
    for (const Job& job : jobs) enter(agreement, job.result);
    close(agreement);
    if (exchange_.ranks() == 1) return Status();
    std::array<double, kAgreementNumbers> sums{agreement.skips, agreement.squares, agreement.norms,
                                               agreement.word};
    ONEBIT_RETURN_IF_ERROR(exchange_.sum(sums));
    agreement = {sums[0], sums[1], sums[2], sums[3]};
    return Status();
  }

  void choose_steps(std::span<const LambRule> rules, std::span<Job> jobs,
                    std::span<LambNumbers> numbers) override {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].scalars.step = choose_step(rules[i], jobs[i].result, numbers[i]);
    }
  }

  Status fetch_numbers(std::span<LambNumbers>) override { return Status(); }

 private:
  /// Consecutive blocks of one tensor.
  struct Item {
    std::size_t job;
    std::size_t begin;
    std::size_t end;
  };

  void run_item(Pass pass, const Job& job, const Item& item) {
    const Kernel kernel = passes_.kernel(pass, job.masked);
    alignas(64) float scratch[kBlock];
    for (std::size_t block = item.begin; block < item.end; ++block) {
      const std::size_t at = block * kBlock;
      const std::size_t n = std::min(kBlock, job.count - at);
      Arrays arrays = job.arrays;
      for (float** array : {&arrays.x, &arrays.m, &arrays.v, &arrays.f, &arrays.w, &arrays.z, &arrays.c}) {
        if (*array != nullptr) *array += at;
      }
      if ((touched(pass).reads & kG) != 0) arrays.g = gradient(job, at, n, scratch);
      partials_[first_block_[item.job] + block] = kernel(job.scalars, arrays, n);
      if ((touched(pass).writes & kW) != 0 && job.narrow_parameters != nullptr) {
        passes_.narrow(job.narrow_type, arrays.w, n,
                       static_cast<std::byte*>(job.narrow_parameters) + at * size_of(job.narrow_type));
      }
    }
  }

  /// The gradient of a block in fp32 and masked: in place where it is so already.
  const float* gradient(const Job& job, std::size_t at, std::size_t n, float* scratch) const {
    if (job.gradient == nullptr) {
      std::fill(scratch, scratch + n, 0.0F);
      return scratch;
    }
    const void* const source = static_cast<const std::byte*>(job.gradient) + at * size_of(job.gradient_type);
    if (job.gradient_type == DataType::kFloat32 && job.gradient_mask == nullptr) {
      return static_cast<const float*>(source);
    }
    passes_.widen(job.gradient_type, source, n, scratch);
    if (job.gradient_mask != nullptr) {
      for (std::size_t i = 0; i < n; ++i) scratch[i] = job.gradient_mask[at + i] == 0 ? 0.0F : scratch[i];
    }
    return scratch;
  }

  HostExchange& exchange_;
  const Passes& passes_;
  std::vector<Item> items_;
  std::vector<std::size_t> first_block_;  // by job, and the number of all blocks
  std::vector<Partial> partials_;
  std::size_t elements_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_host_runner(HostExchange& exchange, std::span<const std::size_t> counts) {
  return std::make_unique<HostRunner>(exchange, counts);
}

}  // namespace onebit::optimizer
