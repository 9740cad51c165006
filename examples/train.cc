// Trains a linear model with 1-bit LAMB on the ranks of a job; each has data of its own. Start it on every
// rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun, mpirun and srun do:
//
//   g++ -std=c++17 train.cc $(pkg-config --cflags --libs onebit) -o train && mpirun -np 4 ./train
#include <cstdio>
#include <onebit/optimizer.hpp>
#include <random>

constexpr std::size_t kInputs = 20'000;
constexpr int kSteps = 300;

int main() try {
  onebit::Communicator ranks;  // from the launcher's variables
  std::vector<float> weights(kInputs, 1), gradient(kInputs), x(kInputs);

  // A DeepSpeed section; or start from onebit::optimizer_config(onebitOneBitLamb) and set its members.
  const auto config = onebit::optimizer_config(R"({"type": "OneBitLamb", "params": {
      "lr": 0.03, "freeze_step": 60, "betas": [0.9, 0.99], "max_coeff": 1.0}})");
  onebit::Optimizer optimizer(config, {onebit::tensor("weights", weights.data(), kInputs)}, ranks);

  std::mt19937 random(static_cast<unsigned>(ranks.rank()));
  std::normal_distribution<float> normal;
  double loss = 0;
  for (int step = 1; step <= kSteps; ++step) {
    // This rank's own batch, of one sample: y is the mean of all inputs, times 3.
    float y = 0, prediction = 0;
    for (std::size_t i = 0; i < kInputs; ++i) {
      x[i] = 1 + 0.1F * normal(random);
      y += 3 * x[i] / kInputs;
      prediction += weights[i] * x[i] / kInputs;
    }
    for (std::size_t i = 0; i < kInputs; ++i) gradient[i] = (prediction - y) * x[i];
    loss = 0.5 * (prediction - y) * (prediction - y);

    optimizer.set_learning_rate(0.03 * (1 - static_cast<double>(step) / kSteps));
    optimizer.step({gradient.data()});  // averages over ranks: exactly in the warm-up, then in 1 bit
    if (step % 50 == 0 && ranks.rank() == 0) std::printf("step %d: loss %.6f\n", step, loss);
  }
  return loss < 0.01 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
