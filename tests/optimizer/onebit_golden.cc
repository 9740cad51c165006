// onebit_golden DIR: replays recorded trajectories of the original 1-bit optimizers and their compressed
// allreduce over real communicators, in deepspeed_compat, and prints each case's largest deviations.
//
// tests/golden/README.md describes the form of DIR: index.json with cases, files of fp32 numbers, generated
// inputs. Ranks are threads joined over loopback. Exit status 1 when a case is outside the index's tolerance,
// 2 when DIR cannot be replayed.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "optimizer/local_ranks.h"
#include "optimizer/onebit_lamb.h"
#include "optimizer/optimizer.h"
#include "optimizer/zero_one_adam.h"

namespace onebit::golden {
namespace {

using collective::Communicator;
using nlohmann::json;
using optimizer::Kind;
using optimizer::Optimizer;

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// 20 random bits as a multiple of 2^-19 in [-1, 1).
float unit(std::uint64_t stream, std::uint64_t rank, std::uint64_t step, std::uint64_t i) {
  const std::uint64_t bits = splitmix64((stream << 56) ^ (rank << 44) ^ (step << 28) ^ i) >> 44;
  return static_cast<float>(static_cast<double>(bits) / (1 << 19) - 1);
}

/// The largest deviation of a kind, and what is allowed.
struct Deviation {
  std::string what;
  double largest = 0;
  double allowed = 0;
  bool holds() const { return largest <= allowed; }
};

class Deviations {
 public:
  void add(const std::string& what, double deviation, double allowed) {
    const std::lock_guard lock(mutex_);
    for (Deviation& each : all_) {
      if (each.what != what) continue;
      each.largest = deviation > each.largest || std::isnan(deviation) ? deviation : each.largest;
      return;
    }
    all_.push_back({what, deviation, allowed});
  }
  const std::vector<Deviation>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::vector<Deviation> all_;
};

class Replay {
 public:
  explicit Replay(std::string directory) : directory_(std::move(directory)) {
    std::ifstream file(directory_ + "/index.json");
    if (!file) throw std::runtime_error(directory_ + "/index.json cannot be read");
    index_ = json::parse(file);
  }
  const json& cases() const { return index_.at("cases"); }

  Status run(const json& recorded, Deviations& deviations) const {
    const int ranks = recorded.at("world_size");
    if (recorded.at("algorithm") == "compressed_allreduce") {
      return testing::run_local_ranks(ranks, "ONEBIT_BLOCK=whole\nONEBIT_SCALE=rms\n",
                                      [&](int rank, Communicator& communicator) {
                                        return replay_allreduce(recorded, rank, communicator, deviations);
                                      });
    }
    // Parameters of each rank after each step, to be compared between ranks.
    const std::size_t steps = recorded.at("steps");
    std::vector<std::vector<float>> of_ranks(static_cast<std::size_t>(ranks));
    ONEBIT_RETURN_IF_ERROR(testing::run_local_ranks(ranks, "", [&](int rank, Communicator& communicator) {
      return replay_optimizer(recorded, rank, communicator, deviations,
                              of_ranks[static_cast<std::size_t>(rank)]);
    }));
    const auto& equal = recorded.at("ranks_bitwise_equal");
    const std::size_t count = of_ranks[0].size() / steps;
    for (std::size_t step = 0; step < steps; ++step) {
      if (!equal[step].get<bool>()) continue;
      for (const auto& one : of_ranks) {
        const bool same = std::memcmp(one.data() + step * count, of_ranks[0].data() + step * count,
                                      count * sizeof(float)) == 0;
        deviations.add("ranks apart", same ? 0 : 1, 0);
      }
    }
    return Status();
  }

 private:
  std::vector<float> read(const json& recorded, const char* file, std::size_t elements) const {
    const std::string name = directory_ + "/" + recorded.at("files").at(file).at("file").get<std::string>();
    std::ifstream in(name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (bytes.size() != elements * sizeof(float)) {
      throw std::runtime_error(
          fmt::format("{} has {} bytes, not {}", name, bytes.size(), elements * sizeof(float)));
    }
    std::vector<float> values(elements);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  double tolerance(const char* name) const { return index_.at("tolerance").at(name); }
  std::uint64_t stream(const char* name) const { return index_.at("streams").at(name); }

  Status replay_allreduce(const json& recorded, int number, Communicator& communicator,
                          Deviations& deviations) const {
    const auto rank = static_cast<std::size_t>(number);
    const std::size_t ranks = communicator.ranks();
    const std::size_t count = recorded.at("elements");
    const std::size_t rounds = recorded.at("rounds");
    const auto out = read(recorded, "output", rounds * count);
    const auto worker = read(recorded, "worker_error", rounds * ranks * count);
    const auto server = read(recorded, "server_error", rounds * count);
    const double allowed = tolerance("allreduce_abs");
    ONEBIT_ASSIGN_OR_RETURN(
        auto residual, collective::Residual::create(count, DataType::kFloat32, ReduceOp::kAvg, rank, ranks));
    std::vector<float> x(count);
    const auto compare = [&](const char* what, const float* got, const float* due, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i)
        deviations.add(what, std::abs(double{got[i]} - double{due[i]}), allowed);
    };
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < count; ++i) {
        x[i] = round == 0 && i % 64 == 5 ? 0.0F : unit(stream("allreduce"), rank, round + 1, i);
      }
      ONEBIT_RETURN_IF_ERROR(communicator.compressed_all_reduce(
          x.data(), count, DataType::kFloat32, ReduceOp::kAvg, "x", communicator.parameters(), residual));
      compare("result", x.data(), out.data() + round * count, count);
      compare("worker error", residual.worker_error.data(), worker.data() + (round * ranks + rank) * count,
              count);
      const std::size_t owned = residual.owner_error.size();
      compare("owner error", residual.owner_error.data(), server.data() + round * count + rank * owned,
              owned);
    }
    return Status();
  }

  static optimizer::Options options_of(const json& recorded, std::size_t tensors) {
    const std::string algorithm = recorded.at("algorithm");
    const Kind kind = algorithm == "onebit_lamb"   ? Kind::kOneBitLamb
                      : algorithm == "onebit_adam" ? Kind::kOneBitAdam
                                                   : Kind::kZeroOneAdam;
    if (kind == Kind::kZeroOneAdam && algorithm != "zero_one_adam") {
      throw std::runtime_error("unknown algorithm " + algorithm);
    }
    json section{{"type", kind == Kind::kOneBitLamb   ? "OneBitLamb"
                          : kind == Kind::kOneBitAdam ? "OneBitAdam"
                                                      : "ZeroOneAdam"},
                 {"params", recorded.at("hyper")}};
    section["params"]["deepspeed_compat"] = true;
    auto options = optimizer::parse_deepspeed(section.dump());
    if (!options.ok()) throw std::runtime_error(options.status().message());
    if (recorded.at("masked").get<bool>()) options->groups.assign(tensors, options->all);
    return *options;
  }

  Status replay_optimizer(const json& recorded, int number, Communicator& communicator,
                          Deviations& deviations, std::vector<float>& all_params) const {
    const auto rank = static_cast<std::uint64_t>(number);
    const std::uint64_t ranks = communicator.ranks();
    const auto sizes = recorded.at("sizes").get<std::vector<std::size_t>>();
    const auto steps = recorded.at("steps").get<std::size_t>();
    const bool masked = recorded.at("masked");
    std::size_t count = 0;
    for (const std::size_t size : sizes) count += size;
    std::vector<float> params(count), gradient(count);
    std::vector<std::uint8_t> mask(count, 1);
    std::vector<optimizer::TensorSpec> tensors;
    std::vector<const void*> gradients;
    std::size_t at = 0;
    for (std::size_t t = 0; t < sizes.size(); at += sizes[t++]) {
      const auto scale = index_.at("param_scale").at(t).get<float>();
      for (std::size_t i = at; i < at + sizes[t]; ++i) params[i] = scale * unit(stream("params"), 0, 0, i);
      const bool has_mask = masked && recorded.at("mask").at("tensor") == t;
      if (has_mask) {
        std::fill(
            mask.begin() + static_cast<std::ptrdiff_t>(at + recorded["mask"]["zero_from"].get<std::size_t>()),
            mask.begin() + static_cast<std::ptrdiff_t>(at + recorded["mask"]["zero_to"].get<std::size_t>()),
            0);
      }
      optimizer::TensorSpec tensor;
      tensor.name = fmt::format("tensor {}", t);
      tensor.parameters = params.data() + at;
      tensor.count = sizes[t];
      tensor.group = masked ? t : 0;
      tensor.mask = has_mask ? mask.data() + at : nullptr;
      tensors.push_back(tensor);
      gradients.push_back(gradient.data() + at);
    }
    const auto due = read(recorded, "params", steps * count);
    ONEBIT_ASSIGN_OR_RETURN(auto made, Optimizer::create(options_of(recorded, sizes.size()), tensors,
                                                         optimizer::make_exchange(communicator)));
    for (std::size_t step = 1; step <= steps; ++step) {
      const bool full = recorded.at("full_precision_step").at(step - 1);
      if ((made->algorithm().plan() == optimizer::Plan::kMean) != full && ranks > 1) {
        return Status::error(Code::kInternalError, "step {} is not of the recorded kind", step);
      }
      at = 0;
      for (std::size_t t = 0; t < sizes.size(); at += sizes[t++]) {
        const auto scale = index_.at("gradient_scale").at(t).get<float>();
        for (std::size_t i = at; i < at + sizes[t]; ++i) {
          gradient[i] =
              mask[i] == 0
                  ? 0.0F
                  : scale * (0.5F * unit(stream("base"), 0, 0, i) + unit(stream("noise"), rank, step, i));
        }
      }
      bool skipped = false;
      ONEBIT_RETURN_IF_ERROR(made->step(gradients, &skipped));
      all_params.insert(all_params.end(), params.begin(), params.end());
      if (rank != 0) continue;
      for (std::size_t i = 0; i < count; ++i) {
        deviations.add("parameters", std::abs(double{params[i]} - double{due[(step - 1) * count + i]}),
                       tolerance("param_abs"));
      }
      if (!recorded.contains("lamb_coeffs")) continue;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        const double coefficient = recorded["lamb_coeffs"][step - 1][t];
        deviations.add("coefficients", std::abs(made->algorithm().coefficient(t) / coefficient - 1),
                       tolerance("lamb_coeff_rel"));
      }
    }
    return rank == 0 ? compare_end(recorded, *made, deviations) : Status();
  }

  Status compare_end(const json& recorded, Optimizer& made, Deviations& deviations) const {
    const auto sizes = recorded.at("sizes").get<std::vector<std::size_t>>();
    std::size_t count = 0;
    for (const std::size_t size : sizes) count += size;
    const auto due = read(recorded, "state", 2 * count);
    std::size_t at = 0;
    for (std::size_t t = 0; t < sizes.size(); at += sizes[t++]) {
      std::vector<float> m(sizes[t]), v(sizes[t]);
      ONEBIT_RETURN_IF_ERROR(made.read_state(t, "exp_avg", m));
      ONEBIT_RETURN_IF_ERROR(made.read_state(t, "exp_avg_sq", v));
      double squares = 0, largest = 0;
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        squares += std::pow(double{due[at + i]}, 2);
        largest = std::max(largest, double{due[count + at + i]});
      }
      const double rms = std::sqrt(squares / static_cast<double>(sizes[t]));
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        deviations.add("momentum", std::abs(double{m[i]} - double{due[at + i]}) / rms,
                       tolerance("momentum_abs_over_tensor_rms"));
        deviations.add("variance", std::abs(double{v[i]} - double{due[count + at + i]}) / largest,
                       tolerance("variance_abs_over_tensor_max"));
      }
      compare_scalars(recorded.at("final_scalars").at(t), t, made, deviations);
    }
    return Status();
  }

  void compare_scalars(const json& due, std::size_t tensor, Optimizer& made, Deviations& deviations) const {
    const auto compare = [&](const char* name, double got) {
      if (!due.contains(name)) return;
      const double value = due[name];
      const double deviation = value == 0 ? std::abs(got) : std::abs(got / value - 1);
      deviations.add("scalars", deviation, tolerance("final_scalar_rel"));
    };
    compare("step", static_cast<double>(made.core().step));
    if (const auto* lamb = dynamic_cast<const optimizer::OneBitLamb*>(&made.algorithm())) {
      compare("lamb_coeff_freeze", lamb->numbers(tensor).average);
      compare("last_factor", lamb->numbers(tensor).last_factor);
      compare("scaling_coeff", lamb->scale(tensor));
    }
    if (const auto* adam = dynamic_cast<const optimizer::ZeroOneAdam*>(&made.algorithm())) {
      compare("var_interval", static_cast<double>(adam->schedule().var_interval));
      compare("var_counter", static_cast<double>(adam->schedule().var_counter));
      compare("local_step_interval", static_cast<double>(adam->schedule().local_step_interval));
      compare("local_step_counter", static_cast<double>(adam->schedule().local_step_counter));
      compare("lrs", adam->window(0));
    }
  }

  const std::string directory_;
  json index_;
};

int replay_all(const std::string& directory, const std::string& only) {
  const Replay replay(directory);
  bool all_hold = true;
  int replayed = 0;
  for (const json& recorded : replay.cases()) {
    const std::string name = recorded.at("name");
    if (!only.empty() && name != only) continue;
    ++replayed;
    Deviations deviations;
    if (const Status status = replay.run(recorded, deviations); !status.ok()) {
      throw std::runtime_error(name + ": " + status.message());
    }
    for (const Deviation& each : deviations.all()) {
      fmt::print("{:<26} {:<14} {:>10.2e}  of {:>8.1e}{}\n", name, each.what, each.largest, each.allowed,
                 each.holds() ? "" : "  OUTSIDE");
      all_hold = all_hold && each.holds();
    }
  }
  if (replayed == 0) throw std::runtime_error("no such case");
  fmt::print("{} cases, {}\n", replayed, all_hold ? "all within tolerance" : "NOT all within tolerance");
  return all_hold ? 0 : 1;
}

}  // namespace
}  // namespace onebit::golden

int main(int argc, char** argv) {
  std::string directory, only;
  CLI::App app("Replays recorded trajectories of the original 1-bit optimizers");
  app.add_option("DIR", directory, "A directory with index.json, as tests/golden")->required();
  app.add_option("--case", only, "Only the case of this name");
  CLI11_PARSE(app, argc, argv);
  try {
    return onebit::golden::replay_all(directory, only);
  } catch (const std::exception& error) {
    fmt::print(stderr, "onebit_golden: {}\n", error.what());
    return 2;
  }
}
