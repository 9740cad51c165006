// What all optimizers share: the flat state, the tensors as jobs of a pass, and the exchanges.
//
// Arrays, fp32, in the order of the layout: x (scratch, and what is exchanged), m, v; masters of 16-bit
// parameters. They lie in the memory of the exchange, which may be a device's: what is done with them here is
// a pass, or goes through Memory. Invariant: between steps x holds nothing of worth, so a step that fails
// before its `finish` has changed nothing. That costs one array of memory, and no pass: the compressed
// momentum arrives in x, and the two arrays change places. Threads: used by the thread that steps the
// optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "optimizer/exchange.h"
#include "optimizer/layout.h"
#include "optimizer/memory.h"
#include "optimizer/options.h"
#include "optimizer/runner.h"

namespace onebit::optimizer {

class Core {
 public:
  static Result<std::unique_ptr<Core>> create(const Options& options, std::vector<TensorSpec> tensors,
                                              std::shared_ptr<Exchange> exchange);

  const Options& options() const { return options_; }
  const Layout& layout() const { return layout_; }
  Exchange& exchange() { return *exchange_; }
  bool compat() const { return options_.deepspeed_compat; }
  /// Whether a compressed exchange changes anything: with one rank there is none.
  bool alone() const { return exchange_->ranks() == 1; }
  std::size_t tensors() const { return jobs_.size(); }
  std::span<Job> jobs() { return jobs_; }
  std::span<const Job> jobs() const { return jobs_; }
  Job& job(std::size_t tensor) { return jobs_[tensor]; }
  const GroupOptions& group(std::size_t tensor) const {
    return options_.group(layout_.tensors()[tensor].group);
  }
  double lr(std::size_t tensor) const { return learning_rates_[layout_.tensors()[tensor].group]; }
  std::vector<double>& learning_rates() { return learning_rates_; }

  /// A further array of the state; its pointers are put into `member` of the jobs' arrays.
  Result<Array> create_array(float* Arrays::*member);

  // ---- the numbers of the coming passes ----
  /// Those of each tensor's group, step = lr, all factors 1, no bound, the gradient scale of this step.
  void reset_scalars(double gradient_scale);
  /// Options::bound_moves: bounds |m/d| by what it can be at most in Adam, where m and v have seen the same
  /// gradients: (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)) by Cauchy and Schwarz, where beta1^2 <
  /// beta2; 7.3 for 0.9 and 0.999. Ours, not the papers'. In 1 bit an element with hardly any variance gets
  /// as large a momentum as its block's others, which would throw it far. Not in deepspeed_compat.
  void bound_moves();
  /// Options::corrects_bias: m and v are sums whose weights do not come to 1 yet; the factors that mend it
  /// after `steps` steps, of which `updates` have changed v (arXiv 1412.6980, section 3).
  void correct_bias(std::int64_t steps, std::int64_t updates);

  // ---- passes and exchanges ----
  Runner& runner() { return *runner_; }
  void run(Pass pass) { runner_->run(pass, jobs_); }
  /// Those of the last pass, into the jobs.
  Status fetch_results() { return runner_->fetch(jobs_); }
  /// What correct_bias corrects becomes part of m and v: from then on m needs no correction, and v stays.
  void settle_bias(std::int64_t steps, std::int64_t updates);
  /// The momentum that came in x becomes m; x holds the one before.
  void swap_momentum();
  /// deepspeed_compat: 0 where the tensors' masks are 0. `member`: which array. The results of the last pass
  /// are gone.
  void apply_masks(float* Arrays::*member);
  /// What lies behind the tensors of each unit in x: zeros, or what m has there.
  void pad_with_zeros();
  void pad_with_momentum();
  Status exchange_mean();
  Status exchange_compressed();

  /// Mends the explosion of coordinates that have never had a gradient: from now on they have no momentum.
  /// Not in deepspeed_compat.
  Status mask_zero_variance();

  /// kInvalidArgument naming the tensor whose gradient lies in memory of another kind.
  Status set_gradients(std::span<const void* const> gradients);
  void forget_gradients();
  Array& x() { return x_; }
  Array& m() { return m_; }
  Array& v() { return v_; }
  // ---- between the state and the host ----
  Memory& space() { return exchange_->memory(); }
  /// The fp32 weights of the stretch [begin, begin + length) of the flat state, padding left alone.
  Status read_weights(std::size_t begin, std::size_t length, float* to);
  /// All of them, from host memory in the order of the flat state; rounded to 16-bit parameters, too.
  Status write_weights(const float* from);
  std::size_t memory() const;

  double mean_square = 0;  ///< of the last step's gradients, clipped: ||g||^2, the mean over ranks
  std::int64_t step = 0;   ///< steps done; deepspeed_compat counts the original's throw-away step too

 private:
  Core(const Options& options, Layout layout, std::shared_ptr<Exchange> exchange)
      : options_(options), layout_(std::move(layout)), exchange_(std::move(exchange)) {}
  Status allocate();

  const Options options_;
  const Layout layout_;
  const std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<Runner> runner_;
  std::vector<double> learning_rates_;
  std::vector<Job> jobs_;
  std::vector<Job> masked_jobs_;                // of apply_masks
  std::vector<const void*> checked_gradients_;  // known to be in memory of the right kind
  Array x_, m_, v_, masters_;
  std::size_t extra_bytes_ = 0;
};

}  // namespace onebit::optimizer
