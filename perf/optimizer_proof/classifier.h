// A classifier of small images: two hidden layers of rectified units, softmax, cross entropy. Weights and
// gradients are flat arrays of six tensors, as an optimizer takes them.
//
// Threads: none of its own; an object belongs to one thread.
#pragma once

#include <Eigen/Dense>
#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace onebit::proof {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix>;

/// Images as rows, and their classes.
struct Samples {
  Matrix pixels;
  std::vector<int> classes;
};

class Classifier {
 public:
  static constexpr std::size_t kLayers = 3;

  Classifier(int pixels, int hidden, int classes, unsigned seed) : width_{pixels, hidden, hidden, classes} {
    std::size_t count = 0;
    for (std::size_t l = 0; l < kLayers; ++l) {
      offset_[2 * l] = count;
      count += static_cast<std::size_t>(width_[l]) * static_cast<std::size_t>(width_[l + 1]);
      offset_[2 * l + 1] = count;
      count += static_cast<std::size_t>(width_[l + 1]);
    }
    offset_[2 * kLayers] = count;
    weights.resize(count, 0);
    gradients.resize(count, 0);
    std::mt19937 random(seed);
    for (std::size_t l = 0; l < kLayers; ++l) {  // biases stay 0
      std::normal_distribution<float> normal(0, std::sqrt(2.0F / static_cast<float>(width_[l])));
      for (std::size_t i = offset_[2 * l]; i < offset_[2 * l + 1]; ++i) weights[i] = normal(random);
    }
  }

  /// The tensors: weights and bias of each layer.
  std::size_t tensors() const { return 2 * kLayers; }
  std::size_t begin(std::size_t tensor) const { return offset_[tensor]; }
  std::size_t count(std::size_t tensor) const { return offset_[tensor + 1] - offset_[tensor]; }
  static std::string name(std::size_t tensor) {
    return (tensor % 2 == 0 ? "weight" : "bias") + std::to_string(tensor / 2);
  }

  /// The mean loss; also how many are right.
  double loss(const Samples& samples, int* right = nullptr) {
    forward(samples.pixels);
    return softmax(samples, right);
  }
  /// The mean loss, and its gradient to `gradients`.
  double backward(const Samples& samples) {
    forward(samples.pixels);
    const double mean = softmax(samples, nullptr);
    Matrix delta = outputs_[kLayers - 1];  // probabilities
    for (Eigen::Index i = 0; i < delta.rows(); ++i)
      delta(i, samples.classes[static_cast<std::size_t>(i)]) -= 1;
    delta /= static_cast<float>(delta.rows());
    for (std::size_t l = kLayers; l-- > 0;) {
      const Matrix& input = l == 0 ? samples.pixels : outputs_[l - 1];
      matrix(gradients, l).noalias() = input.transpose() * delta;
      bias(gradients, l) = delta.colwise().sum();
      if (l == 0) break;
      const Matrix before = delta * matrix(weights, l).transpose();
      delta = (input.array() > 0).select(before, 0.0F);
    }
    return mean;
  }

  std::vector<float> weights;
  std::vector<float> gradients;

 private:
  Map matrix(std::vector<float>& array, std::size_t layer) {
    return {array.data() + offset_[2 * layer], width_[layer], width_[layer + 1]};
  }
  Eigen::Map<Eigen::RowVectorXf> bias(std::vector<float>& array, std::size_t layer) {
    return {array.data() + offset_[2 * layer + 1], width_[layer + 1]};
  }
  void forward(const Matrix& pixels) {
    for (std::size_t l = 0; l < kLayers; ++l) {
      outputs_[l].noalias() = (l == 0 ? pixels : outputs_[l - 1]) * matrix(weights, l);
      outputs_[l].rowwise() += bias(weights, l);
      if (l + 1 < kLayers) outputs_[l] = outputs_[l].cwiseMax(0.0F);
    }
  }
  /// From the last layer's outputs to probabilities, in place.
  double softmax(const Samples& samples, int* right) {
    Matrix& last = outputs_[kLayers - 1];
    double sum = 0;
    for (Eigen::Index i = 0; i < last.rows(); ++i) {
      const int target = samples.classes[static_cast<std::size_t>(i)];
      Eigen::Index best = 0;
      const float largest = last.row(i).maxCoeff(&best);
      if (right != nullptr && best == target) ++*right;
      last.row(i) = (last.row(i).array() - largest).exp();
      last.row(i) /= last.row(i).sum();
      sum -= std::log(std::max(static_cast<double>(last(i, target)), 1e-30));
    }
    return sum / static_cast<double>(last.rows());
  }

  std::array<Eigen::Index, kLayers + 1> width_;
  std::array<std::size_t, 2 * kLayers + 1> offset_{};
  std::array<Matrix, kLayers> outputs_;
};

}  // namespace onebit::proof
