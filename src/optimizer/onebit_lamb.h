// 1-bit LAMB (arXiv 2104.06069, algorithm 1).
//
// Warm-up, freeze_step steps: LAMB (lamb.h), whose bias correction, which the paper does not have, becomes
// part of m and v at the freeze; and for each tensor the average of its coefficients
//
//   L = coeff_beta L + (1 - coeff_beta) c,   in the end divided by 1 - coeff_beta^k for k terms
//
// (deepspeed_compat: not divided, and c = 1 not counted). At the freeze, once, with q_i the rms of tensor i's
// momentum: a_i = mean(q) / q_i makes the momenta of all tensors as large as each other, so that they can
// share scales; a_i is 1 where q_i is 0, and such a tensor is not counted in the mean. Then, with v frozen
// and C[] the error-compensated 1-bit mean over ranks of all tensors in one buffer:
//
//   m'    = C[a_i (beta1 m + (1 - beta1) g)] / a_i                          g is the rank's own gradient
//   p     = m' / (sqrt(v) + eps),   u = p + decay w
//   w     = w - lr L f u,   f within factor_threshold of the last f
//
// where f is what makes L f the coefficient that LAMB would have now,
//
//   f     = clip(||w|| / sqrt(P^2 (||m'|| / M)^2 + decay^2 ||w||^2), min_coeff, max_coeff) / L
//
// with P^2 = (W / L)^2 - decay^2 W^2, that is ||p|| at the freeze, W the ||w|| of the first compressed step,
// and M the mean ||m'|| of steps 11 to 30, up to which ||m'|| / M is taken as 1. With v frozen, ||p|| goes
// with ||m||; and what the noise of 1 bit adds to ||m'|| is in M as well. That f is ours (`norm_factor`). The
// paper's, which it has without norm_factor and in deepspeed_compat, is of a fresh variance, v at the freeze:
//
//   r     = (m' - beta1 m) / (1 - beta1)                                    the gradient that m' tells of
//   fresh = beta2 fresh + (1 - beta2) r^2
//   f     = max over elements of (sqrt(v) + eps) / (sqrt(fresh) + eps)
//   f     = f rho + (1 - rho),   rho = min(1, ||p|| / ||u||)                with decay only
//   f     = clip(f, factor_min, factor_max)
//
// The paper's numbers: beta1 0.9, beta2 0.999, coeff_beta 0.9, factor_max 4, factor_min 0.5, factor_threshold
// 0.1; BERT-Large with max_coeff 0.3, min_coeff 0.01 and freeze_step 1000 of 7038. Elements with v = 0 have
// no momentum and do not enter f (deepspeed_compat: they do, and pin f at 1); p of others is bounded as
// Core::bound_moves says.
//
// Passes when frozen: one reads g, m and writes x; after the exchange one reads m, w (and v where elements
// have v = 0, on a device always; for the paper's f, m, the momentum before, v, fresh, w, and writes fresh);
// one reads m, v, w and writes w: 9 words an element, or 13. The momentum is stored as it was exchanged,
// times a_i. Threads: as Core's.
#pragma once

#include <memory>
#include <vector>

#include "optimizer/lamb.h"
#include "optimizer/variance_monitor.h"

namespace onebit::optimizer {

class OneBitLamb final : public Lamb {
 public:
  static Result<std::unique_ptr<Algorithm>> create(Core& core);
  Plan plan() const override { return stage_ == Stage::kWarmUp ? Plan::kMean : Plan::kCompressed; }
  void prepare(double gradient_scale) override;
  void finish(double gradient_scale) override;
  Status advance() override;
  Status freeze() override;
  void visit_numbers(const NumberVisitor& visit) override;
  std::vector<StateArray> arrays() override;
  Status restored() override;
  const Array* find_array(std::string_view name, std::size_t tensor, double& factor) override;

  /// a_i.
  double scale(std::size_t tensor) const { return scales_[tensor].sent; }

 private:
  explicit OneBitLamb(Core& core)
      : Lamb(core), by_norms_(core.options().factor_by_norms()), monitor_(core), scales_(core.tensors()) {}
  Status choose_scales();

  struct Scales {
    double sent = 1;    ///< a_i
    double stored = 1;  ///< what m is stored times: 1 in warm-up, then a_i
  };
  const bool by_norms_;  ///< f is ours, and there is no fresh variance
  VarianceMonitor monitor_;
  std::vector<Scales> scales_;
  Array fresh_;  ///< of the paper's f alone
};

}  // namespace onebit::optimizer
