// One optimizer's own part of a step, on top of Core.
//
// A step is plan, prepare, exchange, finish. Invariant: plan and prepare change nothing but x, so a step may
// be given up before `finish`; what plan says depends only on what is equal on all ranks. Threads: as Core's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "optimizer/core.h"

namespace onebit::optimizer {

/// The two stages: variance still measured, and frozen. They follow each other once.
enum class Stage : std::uint8_t { kWarmUp = 0, kCompressed = 1 };

/// What a step exchanges.
enum class Plan : std::uint8_t {
  kMean,        ///< gradients, exact
  kCompressed,  ///< x, in 1 bit
  kNothing,     ///< nothing: the step is the rank's own
};

/// An array of the state.
struct StateArray {
  Array* array;
  bool shared;  ///< equal on all ranks, or the rank's own
};

class Algorithm {
 public:
  explicit Algorithm(Core& core) : core_(core) {}
  virtual ~Algorithm() = default;
  Algorithm(const Algorithm&) = delete;
  Algorithm& operator=(const Algorithm&) = delete;

  virtual Plan plan() const = 0;
  /// Writes x from gradients scaled by `gradient_scale`, which is 1 where the plan is kMean. Nothing for
  /// kNothing.
  virtual void prepare(double gradient_scale) = 0;
  /// Takes the step; x is exchanged, and still to be scaled where the plan is kMean.
  virtual void finish(double gradient_scale) = 0;
  /// After `finish`, with Core::step counted up: counters and stage.
  virtual Status advance() { return Status(); }
  /// From warm-up to compression now. kInvalidUsage where that cannot be.
  virtual Status freeze();

  Stage stage() const { return stage_; }
  /// Whether all ranks hold the same weights.
  virtual bool in_common() const { return true; }

  // ---- checkpoints ----
  /// All numbers of the state, in a fixed order, to be read or set.
  using NumberVisitor = std::function<void(double&)>;
  virtual void visit_numbers(const NumberVisitor& visit);
  /// Arrays beside the weights.
  virtual std::vector<StateArray> arrays();
  /// After the numbers and arrays have been set.
  virtual Status restored() { return Status(); }
  /// Brings home the numbers that a device may have: before they are visited, or asked for.
  virtual Status fetch_numbers() { return Status(); }
  /// The array of the state that is named ("exp_avg", ...); null if there is none. `factor`: what its
  /// elements of `tensor` are to be multiplied with.
  virtual const Array* find_array(std::string_view name, std::size_t tensor, double& factor);
  /// LAMB's coefficient of the last step; 1 for others.
  virtual double coefficient(std::size_t /*tensor*/) const { return 1; }

 protected:
  /// Warm-up's steps and those of the plain optimizers: the exact mean of gradients.
  void gather_gradients();
  /// Freezes the variance: the transition, its log line, and the mask. kInvalidUsage where it is not legal.
  Status enter_compressed_stage();

  Core& core_;
  Stage stage_ = Stage::kWarmUp;
};

/// Of the options' kind.
Result<std::unique_ptr<Algorithm>> make_algorithm(Core& core);

/// A whole number among the numbers of a state.
template <typename T>
void visit_integer(const Algorithm::NumberVisitor& visit, T& value) {
  auto number = static_cast<double>(value);
  visit(number);
  value = static_cast<T>(number);
}

}  // namespace onebit::optimizer
