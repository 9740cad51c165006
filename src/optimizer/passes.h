// The passes over memory that all optimizers are made of: the kernels' contract.
//
// A kernel works on one *block*: up to kBlock consecutive elements of one tensor, counted from the tensor's
// start. It reads and writes the arrays that its line below names, and may leave three numbers: two sums and
// a maximum. Invariant: every implementation gives the same bits for every input. Each operation is rounded
// on its own, nothing is contracted to FMA, and a sum goes through kLanes lanes by element index (lane i mod
// kLanes, then folded in halves), so that ranks on different processors and with different numbers of threads
// stay equal bit for bit. Threads: pure functions on their arguments; any thread, on disjoint blocks.
//
// Notation: g gradient, x the exchanged array, m momentum, v variance, f fresh variance, w weights, z
// accumulated moves, c the last common weights; d = sqrt(v) * root_scale + eps; m' = m * momentum_factor; [a]
// is a within +-bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "base/types.h"

namespace onebit::optimizer {

constexpr std::size_t kBlock = 2048;
constexpr std::size_t kLanes = 64;

/// A gradient above this, or not finite, makes a step that is skipped: squares and their sums stay far from
/// fp32's end.
constexpr float kLargestGradient = 0x1p40F;

/// The numbers of a tensor in a pass, rounded once from fp64.
struct Scalars {
  float beta1 = 0;
  float rest1 = 0;     ///< 1 - beta1
  float inverse1 = 0;  ///< 1 / rest1
  float beta2 = 0;
  float rest2 = 0;  ///< 1 - beta2
  float eps = 0;
  float weight_decay = 0;
  float step = 0;             ///< learning rate, times LAMB's coefficient
  float root_scale = 1;       ///< bias correction of sqrt(v)
  float gradient_scale = 1;   ///< clipping
  float momentum_factor = 1;  ///< what the stored momentum is multiplied with to be read
  float previous_factor = 1;  ///< the same for the momentum of the step before
  float exchange_scale = 1;   ///< what the momentum is multiplied with to be sent
  float window = 1;           ///< sum of learning rates since the last sync
  float bound = std::numeric_limits<float>::infinity();  ///< of |m'/d|
  float accumulated_decay = 0;                           ///< the part of weight decay that enters z
};

/// The arrays of a block. A kernel touches those that its line names.
struct Arrays {
  const float* g = nullptr;
  float* x = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  float* f = nullptr;
  float* w = nullptr;
  float* z = nullptr;
  float* c = nullptr;
};

struct Partial {
  float first = 0;
  float second = 0;
  float largest = 0;  ///< NaN if any term is
};

/// What can be done to a tensor. "live" elements are those with v > 0; the passes marked * have a variant
/// `masked` in which the others have no momentum and do not move except by weight decay.
enum class Pass : std::uint8_t {
  /// first = sum g^2, largest = max |g|.
  kCheck,
  /// As kCheck; x = g * gradient_scale.
  kGather,
  /// As kCheck; x = (beta1 m' + rest1 (g * gradient_scale)) * exchange_scale.
  kMomentum,
  /// With a = x * gradient_scale: m = beta1 m + rest1 a, v = beta2 v + rest2 a^2, w -= step ([m'/d] + decay
  /// w).
  kAdam,
  /// * m = beta1 m + rest1 x, w -= step ([m'/d] + decay w); v stays.
  kAdamKeepingVariance,
  /// As kAdam without w and bound; first = sum w^2, second = sum (m'/d + decay w)^2.
  kLambNorms,
  /// * w -= step ([m'/d] + decay w).
  kApply,
  /// * r = (m' - beta1 (x * previous_factor)) / rest1 (x is the momentum before), f = beta2 f + rest2 r^2;
  /// first = sum [m'/d]^2, second = sum ([m'/d] + decay w)^2, largest = max d / (sqrt(f) + eps) of live
  /// elements
  /// (of all when not masked).
  kLambFrozen,
  /// * m = beta1 m + rest1 (g * gradient_scale), w -= step (m/d + decay w), z -= step (m/d +
  /// accumulated_decay
  /// w).
  kLocal,
  /// * As kCheck; what kLocal would leave in z, times d, to x; nothing else changes.
  kSyncPrepare,
  /// * m = -x / window, c = c - (decay window) c + window [x/d / window], w = c, z = 0.
  kSyncFinish,
  /// As the original does it: kLocal, then w -= z, m = -x / window, w += x/d, z = 0.
  kSyncFinishSubtracting,
  /// first = sum x^2.
  kExchangedNorm,
  /// * first = sum m^2, of live elements when masked, second = sum w^2; nothing changes.
  kNorms,
  /// first = sum v, second = the number of elements with v = 0.
  kVarianceNorm,
  /// m = m', v = v root_scale^2.
  kCorrect,
};
constexpr std::size_t kPasses = 16;

/// A bit for each of Arrays' members.
enum ArrayBit : unsigned {
  kG = 1U << 0,
  kX = 1U << 1,
  kM = 1U << 2,
  kV = 1U << 3,
  kF = 1U << 4,
  kW = 1U << 5,
  kZ = 1U << 6,
  kC = 1U << 7,
};

/// The arrays that a pass reads and writes, as ArrayBits.
struct Touched {
  unsigned reads;
  unsigned writes;         ///< without the next
  unsigned writes_masked;  ///< by the masked variant only
};

constexpr Touched touched(Pass pass) noexcept {
  switch (pass) {
    case Pass::kCheck:
      return {kG, 0, 0};
    case Pass::kGather:
      return {kG, kX, 0};
    case Pass::kMomentum:
      return {kG | kM, kX, 0};
    case Pass::kAdam:
      return {kX | kM | kV | kW, kM | kV | kW, 0};
    case Pass::kAdamKeepingVariance:
      return {kX | kM | kV | kW, kM | kW, 0};
    case Pass::kLambNorms:
      return {kX | kM | kV | kW, kM | kV, 0};
    case Pass::kApply:
      return {kM | kV | kW, kW, kM};
    case Pass::kLambFrozen:
      return {kX | kM | kV | kF | kW, kF, kM};
    case Pass::kLocal:
      return {kG | kM | kV | kW | kZ, kM | kW | kZ, 0};
    case Pass::kSyncPrepare:
      return {kG | kM | kV | kW | kZ, kX, 0};
    case Pass::kSyncFinish:
      return {kX | kV | kC, kM | kW | kZ | kC, 0};
    case Pass::kSyncFinishSubtracting:
      return {kG | kX | kM | kV | kW | kZ, kM | kW | kZ, 0};
    case Pass::kExchangedNorm:
      return {kX, 0, 0};
    case Pass::kNorms:
      return {kM | kV | kW, 0, 0};
    case Pass::kVarianceNorm:
      return {kV, 0, 0};
    case Pass::kCorrect:
      return {kM | kV, kM | kV, 0};
  }
  return {0, 0, 0};
}

using Kernel = Partial (*)(const Scalars& scalars, const Arrays& arrays, std::size_t n) noexcept;

/// One set of kernels.
struct Passes {
  std::string_view name;                               ///< as the codec's implementations are named
  std::array<std::array<Kernel, 2>, kPasses> kernels;  ///< by pass; plain, masked
  void (*widen)(DataType type, const void* from, std::size_t n, float* to) noexcept;
  /// Rounds to nearest even.
  void (*narrow)(DataType type, const float* from, std::size_t n, void* to) noexcept;

  Kernel kernel(Pass pass, bool masked) const { return kernels[static_cast<std::size_t>(pass)][masked]; }
};

/// Those that this processor can run, best last; the first one is "scalar" where no SIMD target is required
/// by the compiler's own baseline.
std::span<const Passes> passes() noexcept;
/// By the name of a codec implementation; the best where there is none of that name.
const Passes& find_passes(std::string_view name) noexcept;

}  // namespace onebit::optimizer
