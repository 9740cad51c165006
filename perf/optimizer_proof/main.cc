// optimizer_proof: the same training with LAMB, 1-bit LAMB, Adam, 1-bit Adam and 0/1 Adam on several ranks:
// loss per step, bytes on the wire, time.
//
// The data are a CSV file of images, 64 pixels from 0 to 16 and the class in each line, as scikit-learn's
// digits; `perf/proof` fetches it. Every seed sets the first weights and the order of the data, the same for
// all optimizers. A rank is a thread with a communicator over loopback, its own part of each batch, and a
// model of its own. The loss that is reported is that of all training data at the end, without noise.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <onebit/onebit.hpp>
#include <onebit/optimizer.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "classifier.h"

namespace onebit::proof {
namespace {

constexpr int kPixels = 64;
constexpr int kClasses = 10;

struct Setup {
  std::string data;
  std::string json;
  std::string only;  ///< an optimizer's name
  int ranks = 4;
  int steps = 600;
  int batch = 128;  ///< of all ranks
  int seeds = 3;
  int hidden = 512;
  int warm_up = 100;   ///< steps until the variance is frozen
  int held_out = 297;  ///< samples for the test
  double noise = 0.6;  ///< of the pixels in training
  double lamb_lr = 0.01;
  double adam_lr = 1e-3;
};

/// One optimizer of the comparison.
struct Contestant {
  std::string name;
  onebitOptimizerConfig_t config;
};

struct Outcome {
  std::vector<double> losses;  ///< of each step's batch, mean over ranks
  double loss = 0;             ///< their mean over the last tenth of the steps
  double clean_loss = 0;       ///< of all training data without noise, at the end
  double accuracy = 0;         ///< of the held-out data
  double seconds = 0;
  std::uint64_t bytes = 0;          ///< sent by a rank
  std::uint64_t warm_up_bytes = 0;  ///< of them in the first warm_up steps
};

std::vector<Contestant> contestants(const Setup& setup) {
  std::vector<Contestant> all;
  for (const auto type : {onebitLamb, onebitOneBitLamb, onebitAdam, onebitOneBitAdam, onebitZeroOneAdam}) {
    onebitOptimizerConfig_t config = optimizer_config(type);
    const bool lamb = type == onebitLamb || type == onebitOneBitLamb;
    config.group.lr = lamb ? setup.lamb_lr : setup.adam_lr;
    config.group.weight_decay = 0.01;
    config.freeze_step = setup.warm_up;
    config.var_freeze_step = setup.warm_up;
    config.var_update_scaler = 2;
    config.local_step_scaler = setup.warm_up;
    config.local_step_clipper = 4;
    const char* const names[] = {"", "LAMB", "Adam", "1-bit LAMB", "1-bit Adam", "0/1 Adam"};
    if (setup.only.empty() || setup.only == names[type]) all.push_back({names[type], config});
  }
  return all;
}

/// Up in a line during the first half of the warm-up, and down to 0 over all steps.
double rate_factor(int step, const Setup& setup) {
  const double up = std::min(1.0, step / (0.5 * setup.warm_up));
  return up * (1 - static_cast<double>(step - 1) / setup.steps);
}

Samples read_samples(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::array<float, kPixels>> rows;
  Samples samples;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::array<float, kPixels> row{};
    std::string field;
    for (float& pixel : row) {
      if (!std::getline(fields, field, ','))
        throw std::runtime_error(path + ": a line has fewer than 65 fields");
      pixel = std::stof(field) / 16 - 0.3F;
    }
    std::getline(fields, field);
    samples.classes.push_back(static_cast<int>(std::stof(field)));
    rows.push_back(row);
  }
  if (rows.empty()) throw std::runtime_error(path + " cannot be read, or has no lines");
  samples.pixels.resize(static_cast<Eigen::Index>(rows.size()), kPixels);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    samples.pixels.row(static_cast<Eigen::Index>(i)) =
        Eigen::Map<Eigen::RowVectorXf>(rows[i].data(), kPixels);
  }
  return samples;
}

Samples slice(const Samples& all, std::size_t begin, std::size_t end) {
  Samples part;
  part.pixels =
      all.pixels.middleRows(static_cast<Eigen::Index>(begin), static_cast<Eigen::Index>(end - begin));
  part.classes.assign(all.classes.begin() + static_cast<std::ptrdiff_t>(begin),
                      all.classes.begin() + static_cast<std::ptrdiff_t>(end));
  return part;
}

std::uint64_t sent_bytes(const Communicator& communicator) {
  onebitStats_t stats{};
  stats.size = sizeof stats;
  check(onebitCommGetStats(communicator.get(), &stats));
  return stats.wire_bytes_sent;
}

/// One rank's whole training.
Outcome train(const Setup& setup, const Contestant& contestant, unsigned seed, const Samples& training,
              const Samples& test, const Communicator& communicator) {
  Classifier model(kPixels, setup.hidden, kClasses, seed);
  std::vector<onebitTensor_t> tensors;
  std::vector<std::string> names;
  std::vector<const void*> gradients;
  for (std::size_t t = 0; t < model.tensors(); ++t) names.push_back(Classifier::name(t));
  for (std::size_t t = 0; t < model.tensors(); ++t) {
    tensors.push_back(tensor(names[t].c_str(), model.weights.data() + model.begin(t), model.count(t)));
    gradients.push_back(model.gradients.data() + model.begin(t));
  }
  Optimizer optimizer(contestant.config, tensors, communicator);
  const int rank = communicator.rank();
  const int share = setup.batch / setup.ranks;
  std::mt19937 order(seed * 7919);                                      // the same on all ranks
  std::mt19937 noise(seed * 104729 + static_cast<unsigned>(rank) + 1);  // the rank's own
  std::normal_distribution<float> normal(0, static_cast<float>(setup.noise));
  Outcome outcome;
  Samples batch;
  batch.pixels.resize(share, kPixels);
  batch.classes.resize(static_cast<std::size_t>(share));
  const std::uint64_t before = sent_bytes(communicator);
  const auto start = std::chrono::steady_clock::now();
  for (int step = 1; step <= setup.steps; ++step) {
    for (int i = 0; i < setup.batch; ++i) {
      const std::size_t sample = order() % training.classes.size();
      const int own = i - rank * share;
      if (own < 0 || own >= share) continue;
      batch.pixels.row(own) = training.pixels.row(static_cast<Eigen::Index>(sample));
      batch.classes[static_cast<std::size_t>(own)] = training.classes[sample];
    }
    batch.pixels = batch.pixels.unaryExpr([&](float pixel) { return pixel + normal(noise); });
    outcome.losses.push_back(model.backward(batch));
    optimizer.set_learning_rate(contestant.config.group.lr * rate_factor(step, setup));
    optimizer.step(gradients);
    if (step == setup.warm_up) outcome.warm_up_bytes = sent_bytes(communicator) - before;
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.bytes = sent_bytes(communicator) - before;
  outcome.clean_loss = model.loss(training);
  int right = 0;
  model.loss(test, &right);
  outcome.accuracy = static_cast<double>(right) / static_cast<double>(test.classes.size());
  return outcome;
}

/// All ranks, as threads; their mean, and the largest time.
Outcome train_all(const Setup& setup, const Contestant& contestant, unsigned seed, const Samples& training,
                  const Samples& test) {
  const onebitUniqueId id = unique_id();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setup.ranks));
  std::vector<std::string> failures(outcomes.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < setup.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto own = static_cast<std::size_t>(rank);
      try {
        const Communicator communicator(setup.ranks, id, rank);
        outcomes[own] = train(setup, contestant, seed, training, test, communicator);
      } catch (const std::exception& error) {
        failures[own] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw std::runtime_error(contestant.name + ": " + failure);
  }
  Outcome mean = outcomes[0];
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    for (std::size_t i = 0; i < mean.losses.size(); ++i) mean.losses[i] += outcomes[rank].losses[i];
    mean.seconds = std::max(mean.seconds, outcomes[rank].seconds);
  }
  for (double& loss : mean.losses) loss /= static_cast<double>(outcomes.size());
  const auto last = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, mean.losses.size() / 10));
  mean.loss = std::accumulate(mean.losses.end() - last, mean.losses.end(), 0.0) / static_cast<double>(last);
  return mean;
}

void run(const Setup& setup) {
  const Samples all = read_samples(setup.data);
  const std::size_t split = all.classes.size() - static_cast<std::size_t>(setup.held_out);
  const Samples training = slice(all, 0, split);
  const Samples test = slice(all, split, all.classes.size());
  const Classifier model(kPixels, setup.hidden, kClasses, 0);
  fmt::print("{} parameters, {} ranks, {} steps of {} samples, variance frozen after {}, {} seeds\n",
             model.weights.size(), setup.ranks, setup.steps, setup.batch, setup.warm_up, setup.seeds);
  fmt::print("{:<11} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12} {:>7} {:>9}\n", "optimizer", "loss", "+-", "clean",
             "accuracy", "bytes/rank", "bytes/step", "ratio", "ms/step");
  nlohmann::json report = nlohmann::json::array();
  // What a step of the first one takes: LAMB's, in full precision.
  double full_step = 0;
  for (const Contestant& contestant : contestants(setup)) {
    std::vector<Outcome> outcomes;
    for (int seed = 1; seed <= setup.seeds; ++seed) {
      outcomes.push_back(train_all(setup, contestant, static_cast<unsigned>(seed), training, test));
    }
    const auto count = static_cast<double>(outcomes.size());
    double loss = 0, clean = 0, accuracy = 0, seconds = 0, spread = 0;
    for (const Outcome& each : outcomes) {
      loss += each.loss / count;
      clean += each.clean_loss / count;
      accuracy += each.accuracy / count;
      seconds += each.seconds / count;
    }
    for (const Outcome& each : outcomes) spread = std::max(spread, std::abs(each.loss - loss));
    const Outcome& first = outcomes[0];
    const double step_bytes =
        static_cast<double>(first.bytes - first.warm_up_bytes) / (setup.steps - setup.warm_up);
    if (full_step == 0) full_step = step_bytes;
    fmt::print("{:<11} {:>9.5f} {:>9.5f} {:>9.5f} {:>9.4f} {:>12} {:>12.0f} {:>7.2f} {:>9.2f}\n",
               contestant.name, loss, spread, clean, accuracy, first.bytes, step_bytes,
               full_step / step_bytes, 1e3 * seconds / setup.steps);
    for (std::size_t seed = 0; seed < outcomes.size(); ++seed) {
      const Outcome& each = outcomes[seed];
      report.push_back({{"optimizer", contestant.name},
                        {"seed", seed + 1},
                        {"losses", each.losses},
                        {"loss", each.loss},
                        {"clean_loss", each.clean_loss},
                        {"accuracy", each.accuracy},
                        {"seconds", each.seconds},
                        {"bytes", each.bytes},
                        {"warm_up_bytes", each.warm_up_bytes}});
    }
  }
  fmt::print(
      "loss: of the batches of the last tenth of the steps, mean of the seeds, +- the farthest; clean: of "
      "all "
      "training data;\nbytes/step: sent by a rank once the variance is frozen, ratio to a step of the "
      "first\n");
  if (!setup.json.empty()) std::ofstream(setup.json) << report.dump(1) << "\n";
}

}  // namespace
}  // namespace onebit::proof

int main(int argc, char** argv) {
  onebit::proof::Setup setup;
  CLI::App app("The same training with each optimizer");
  app.add_option("DATA", setup.data, "CSV: 64 pixels from 0 to 16 and the class")->required();
  app.add_option("--ranks", setup.ranks, "Ranks")->check(CLI::Range(1, 64));
  app.add_option("--steps", setup.steps, "Steps of training")->check(CLI::PositiveNumber);
  app.add_option("--batch", setup.batch, "Samples a step, of all ranks")->check(CLI::PositiveNumber);
  app.add_option("--seeds", setup.seeds, "Seeds")->check(CLI::PositiveNumber);
  app.add_option("--hidden", setup.hidden, "Units of a hidden layer")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", setup.warm_up, "Steps until the variance is frozen")
      ->check(CLI::PositiveNumber);
  app.add_option("--held-out", setup.held_out, "Samples for the test")->check(CLI::PositiveNumber);
  app.add_option("--noise", setup.noise, "Deviation of noise on the pixels")->check(CLI::NonNegativeNumber);
  app.add_option("--lamb-lr", setup.lamb_lr, "LAMB's learning rate")->check(CLI::PositiveNumber);
  app.add_option("--adam-lr", setup.adam_lr, "Adam's learning rate")->check(CLI::PositiveNumber);
  app.add_option("--only", setup.only, "Only the optimizer of this name, such as '1-bit LAMB'");
  app.add_option("--json", setup.json, "Write every loss to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    onebit::proof::run(setup);
  } catch (const std::exception& error) {
    fmt::print(stderr, "optimizer_proof: {}\n", error.what());
    return 1;
  }
  return 0;
}
