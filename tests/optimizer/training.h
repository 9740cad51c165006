// A small problem to train on: each rank pulls its weights to a target of all, with noise of its own.
//
// The gradient of element i of rank r in step s is h_i (w_i - target_i) + noise(r, s, i); all of it repeats
// exactly. Threads: a Worker belongs to its rank's thread.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optimizer/local_ranks.h"
#include "optimizer/optimizer.h"
#include "support/ranks.h"

namespace onebit::testing {

using optimizer::Kind;
using optimizer::Optimizer;
using optimizer::Options;
using optimizer::TensorSpec;

constexpr Kind kAllKinds[] = {Kind::kLamb, Kind::kAdam, Kind::kOneBitLamb, Kind::kOneBitAdam,
                              Kind::kZeroOneAdam};

/// Sizes that nothing divides, with an empty tensor among them.
inline const std::vector<std::size_t> kOddSizes{321, 0, 1, 67, 2500};

/// Options under which 60 steps pass through every stage and interval.
inline Options short_options(Kind kind) {
  Options options = optimizer::default_options(kind);
  options.all.lr = 0.01;
  options.all.weight_decay = 0.01;
  options.freeze_step = 20;
  options.var_freeze_step = 30;
  options.var_update_scaler = 4;
  options.local_step_scaler = 10;
  options.local_step_clipper = 4;
  return options;
}

class Worker {
 public:
  using Change = std::function<void(std::vector<TensorSpec>&)>;
  Worker(const Options& options, const std::vector<std::size_t>& sizes,
         collective::Communicator& communicator, const Change& change = {})
      : rank_(communicator.rank()) {
    std::size_t count = 0;
    for (const std::size_t size : sizes) count += size;
    parameters.resize(count);
    gradients.resize(count);
    Random random(1);
    for (float& w : parameters) w = random.unit();
    std::vector<TensorSpec> tensors;
    std::size_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      TensorSpec tensor;
      tensor.name = "layer" + std::to_string(i);
      tensor.parameters = parameters.data() + at;
      tensor.count = sizes[i];
      tensors.push_back(tensor);
      pointers.push_back(gradients.data() + at);
    }
    if (change) change(tensors);
    auto result = Optimizer::create(options, std::move(tensors), optimizer::make_exchange(communicator));
    status = result.status();
    if (result.ok()) made = std::move(*result);
  }

  Optimizer& operator*() { return *made; }
  Optimizer* operator->() { return made.get(); }

  /// The gradients of step `step`, from 1.
  void set_gradients(int step) {
    Random random(1000 * static_cast<std::uint64_t>(step) + rank_);
    Random target(7);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      gradients[i] = 0.1F * (parameters[i] - 0.5F * target.unit()) + 0.02F * random.unit();
    }
  }
  Status step(int number) {
    ONEBIT_RETURN_IF_ERROR(status);
    set_gradients(number);
    return take();
  }
  /// With the gradients that are there.
  Status take() { return made->step(pointers, &skipped); }

  std::vector<float> state(std::size_t tensor, std::string_view name) {
    std::vector<float> values(made->core().job(tensor).count);
    const Status read = made->read_state(tensor, name, values);
    EXPECT_TRUE(read.ok()) << read.message();
    return values;
  }

  /// Of each unit.
  std::vector<std::vector<float>> worker_errors() {
    std::vector<std::vector<float>> all;
    auto& exchange = made->core().exchange();
    for (std::size_t unit = 0; unit < exchange.units(); ++unit) {
      const auto residual = exchange.residual(unit);
      EXPECT_TRUE(residual.ok());
      const auto& errors = (*residual)->worker_error;
      all.emplace_back(errors.data(), errors.data() + errors.size());
    }
    return all;
  }

  std::vector<float> parameters;
  std::vector<float> gradients;
  std::vector<const void*> pointers;
  std::unique_ptr<Optimizer> made;
  Status status;
  bool skipped = false;

 private:
  std::size_t rank_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Fails the test with the status' words.
inline ::testing::AssertionResult ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.message();
}

/// Trains `steps` steps on `ranks` ranks; what rank r ends with is result[r].
inline std::vector<std::vector<float>> train(int ranks, const Options& options, int steps,
                                             const std::vector<std::size_t>& sizes = kOddSizes,
                                             const std::string& settings = "") {
  std::vector<std::vector<float>> ends(static_cast<std::size_t>(ranks));
  EXPECT_TRUE(
      ok(run_local_ranks(ranks, settings, [&](int rank, collective::Communicator& communicator) -> Status {
        Worker worker(options, sizes, communicator);
        for (int step = 1; step <= steps; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
        ends[static_cast<std::size_t>(rank)] = worker.parameters;
        return Status();
      })));
  return ends;
}

}  // namespace onebit::testing
