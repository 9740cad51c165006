// 0/1 Adam (arXiv 2202.06009, algorithm 1).
//
// Until var_freeze_step (T_v) steps are done, in step t, with C[] the error-compensated 1-bit mean over
// ranks:
//
//   t mod I_v = 0:  with g the exact mean over ranks, m = beta1 m + (1 - beta1) g,
//                   v = beta2 v + (1 - beta2) g^2
//   else:           m = beta1 m + (1 - beta1) C[g], v stays
//   both:           w = w - lr (m / d + decay w),   d = sqrt(v) root + eps
//
// I_v doubles after every var_update_scaler (kappa) exact steps: the paper's k_(j+1) - k_j =
// 2^floor(j/kappa). Then v is frozen, residuals start anew, and ranks step on their own; z sums up their
// moves:
//
//   m = beta1 m + (1 - beta1) g,   w = w - lr (m / d + decay w),   z = z - lr m / d
//   every I_l-th step, with S the sum of lr since the last sync and c the weights after it:
//       x = C[z d],   m = -x / S,   w = c = c - decay S c + x / d,   z = 0
//
// I_l doubles after every local_step_scaler steps, up to local_step_clipper (H). The paper's numbers: kappa
// 16, H 16; BERT-Large with local_step_scaler 32768 (the original's default is 32678).
//
// Ours, and not the paper's: root, which is VarianceScale's, and Adam's bias correction up to T_v, of v with
// the number of its updates; then it becomes part of m and v.
//
// All ranks have the same weights after each sync, as c is kept: it costs one array. deepspeed_compat goes
// back by subtracting z instead, from where ranks differ in the last bits; there decay enters z, and syncs
// are where t mod I_l = 0. Elements with v = 0 have no momentum (deepspeed_compat: they have); m / d of
// others is bounded as Core::bound_moves says. Threads: as Core's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/variance_scale.h"

namespace onebit::optimizer {

class ZeroOneAdam final : public Algorithm {
 public:
  static Result<std::unique_ptr<Algorithm>> create(Core& core);
  Plan plan() const override;
  void prepare(double gradient_scale) override;
  void finish(double gradient_scale) override;
  Status advance() override;
  /// deepspeed_compat never comes back to it after the first sync.
  bool in_common() const override {
    return stage_ == Stage::kWarmUp || (since_sync_ == 0 && !core_.compat());
  }
  void visit_numbers(const NumberVisitor& visit) override;
  Status restored() override;
  double coefficient(std::size_t /*tensor*/) const override { return 1 / scale_.root(); }
  std::vector<StateArray> arrays() override;
  const Array* find_array(std::string_view name, std::size_t tensor, double& factor) override;

  struct Schedule {
    std::int64_t var_interval = 1;  ///< I_v
    std::int64_t var_counter = 0;
    std::int64_t local_step_interval = 1;  ///< I_l
    std::int64_t local_step_counter = 0;
  };
  const Schedule& schedule() const { return schedule_; }
  /// Sum of a group's learning rates since the last sync.
  double window(std::size_t group) const { return windows_[group]; }

 private:
  explicit ZeroOneAdam(Core& core)
      : Algorithm(core), scale_(core), windows_(core.learning_rates().size(), 0) {}
  void freeze_variance();
  /// Steps that have changed v.
  std::int64_t variance_updates() const;
  /// Whether the coming step of the frozen stage ends in a sync.
  bool syncs() const;
  void set_local_scalars(double gradient_scale);

  VarianceScale scale_;
  Schedule schedule_;
  std::int64_t since_sync_ = 0;
  std::vector<double> windows_;
  Array z_, common_;
};

}  // namespace onebit::optimizer
