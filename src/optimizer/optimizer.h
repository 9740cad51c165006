// An optimizer: parameters of all ranks, stepped together.
//
// A step: (clipping or a step without exchange: the gradients are looked over;) prepare; agreement; exchange;
// finish. In the agreement, one small exact allreduce a step, ranks learn whether any of them must skip, the
// common norm for clipping, and that all are at the same step, stage and learning rate. Invariant: a step
// that any rank skips is skipped by all, before anything compressed is sent; a step that fails in the
// exchange leaves parameters and state as they were. After the first failed exchange the communicator is
// broken, but the state can be saved (residuals that the call was changing count as 0). Threads: one at a
// time, that which uses the communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "optimizer/algorithm.h"
#include "optimizer/core.h"
#include "optimizer/exchange.h"
#include "optimizer/options.h"

namespace onebit::optimizer {

class Optimizer {
 public:
  /// An error names the hyper-parameter or the tensor. Not collective; what it came to goes to
  /// Exchange::made, which may be.
  static Result<std::unique_ptr<Optimizer>> create(const Options& options, std::vector<TensorSpec> tensors,
                                                   std::shared_ptr<Exchange> exchange);

  /// One step with this rank's gradients, a pointer for each tensor (null: zeros; an empty span: all zeros).
  /// They are the rank's own, neither summed nor averaged over ranks; the optimizer does that. Collective.
  /// `skipped`: some rank had a gradient that is not finite or larger than kLargestGradient, so nothing
  /// changed on any.
  Status step(std::span<const void* const> gradients, bool* skipped);
  /// Of one group from the coming step on; the same on all ranks.
  Status set_learning_rate(std::size_t group, double lr);
  /// Ends the warm-up now, before freeze_step. All ranks do it between the same steps.
  Status freeze();

  // ---- what it is at ----
  const Options& options() const { return core_->options(); }
  Core& core() { return *core_; }
  Algorithm& algorithm() { return *algorithm_; }
  std::int64_t steps() const { return core_->step - (core_->compat() ? 1 : 0); }
  std::int64_t skipped_steps() const { return skipped_steps_; }
  Stage stage() const { return algorithm_->stage(); }
  /// Whether all ranks have the same parameters now.
  bool in_common() const { return algorithm_->in_common(); }
  /// Bytes of state and residuals on this rank.
  std::size_t memory() const { return core_->memory(); }
  /// What LAMB has multiplied a tensor's learning rate with in the last step.
  Result<double> coefficient(std::size_t tensor);
  /// Copies an array of the state of a tensor, named as DeepSpeed names it: exp_avg, exp_avg_sq,
  /// exp_avg_sq_fresh, momentum_accumulator.
  Status read_state(std::size_t tensor, std::string_view name, std::span<float> to);

  // ---- checkpoints; every rank makes these calls, after the same step ----
  /// Local.
  Status save(const std::string& directory);
  /// As save, but the file stands for itself: it can be loaded without those of the other ranks.
  Status save_whole(const std::string& directory);
  /// Sets parameters and state to the newest that the same or another number of ranks have saved. Collective:
  /// all ranks load one moment's, or none loads anything; on an error nothing has changed.
  Status load(const std::string& directory);

 private:
  explicit Optimizer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
  /// The agreement on the results of the last pass which measured the gradients; waits for a device.
  Status agree(Agreement& agreement);
  Status compare_tensors();
  Status explain_difference(Plan plan);
  /// Says which tensor's gradient must not be used, if one must not.
  void log_bad_gradient() const;
  double squared_norm() const;
  double clipping_factor(double norm) const;
  Status take_step(std::span<const void* const> gradients, bool* skipped);
  void visit_numbers(const Algorithm::NumberVisitor& visit);

  std::unique_ptr<Core> core_;
  std::unique_ptr<Algorithm> algorithm_;
  bool compared_ = false;
  std::int64_t skipped_steps_ = 0;
  /// Clipping: the norm of the mean gradient over the root mean square of the ranks' norms, as seen in
  /// full-precision steps; it stands for the first where only the second is known.
  double norm_ratio_ = 0;
  friend class Checkpoint;
};

}  // namespace onebit::optimizer
