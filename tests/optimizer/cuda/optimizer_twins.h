// One rank's two optimizers of the same tensors by the C API: in host memory over a communicator of onebit's,
// and in a GPU's memory over one of NCCL's. Whatever they are given, they have the same bits.
//
// Threads: of the rank's own.
#pragma once

#include <gtest/gtest.h>
#include <onebit/optimizer.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/convert.h"
#include "support/random.h"
#include "support/ranks.h"
#include "tensor.h"

namespace onebit::testing {

using nccl::Tensor;

/// Bytes of the host, and a copy on the current device.
class Mirrored {
 public:
  explicit Mirrored(std::size_t bytes) : host(bytes), device(bytes) {}
  void upload(cudaStream_t stream) const { device.write(host, stream); }
  void* data() { return host.data(); }

  std::vector<std::byte> host;
  Tensor device;
};

inline std::size_t element_bytes(onebitDataType_t type) {
  return type == onebitFloat32 ? 4 : 2;
}

inline void put(onebitDataType_t type, float value, std::byte* to, std::size_t i) {
  if (type == onebitFloat32) {
    std::memcpy(to + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t narrow =
      type == onebitFloat16 ? codec::float_to_half(value) : codec::float_to_bfloat16(value);
  std::memcpy(to + 2 * i, &narrow, 2);
}

/// What tensors are made of.
struct Tensors {
  std::vector<std::size_t> sizes;
  onebitDataType_t parameters = onebitFloat32;
  onebitDataType_t gradients = onebitFloat32;
  bool masked = false;
  std::size_t groups = 1;  ///< tensor i is of group i mod groups
};

/// Nothing divides them; one is empty, one has more than a block of elements.
inline const std::vector<std::size_t> kMixedSizes{321, 0, 1, 67, 2500};

class OptimizerTwins {
 public:
  /// `comm`, `nccl_comm`: null leaves that twin out. The current device is the communicator's.
  OptimizerTwins(onebitOptimizerConfig_t config, const Tensors& tensors, int rank, onebitComm_t comm,
                 void* nccl_comm, cudaStream_t stream, const char* settings = nullptr)
      : tensors_(tensors), rank_(static_cast<std::uint64_t>(rank)), stream_(stream) {
    Random random(1);
    std::vector<onebitTensor_t> on_host, on_device;
    names_.reserve(tensors.sizes.size());  // what tensors point to stays
    for (std::size_t i = 0; i < tensors.sizes.size(); ++i) {
      const std::size_t n = tensors.sizes[i];
      names_.push_back("layer" + std::to_string(i));
      auto& w = *w_.emplace_back(std::make_unique<Mirrored>(n * element_bytes(tensors.parameters)));
      g_.push_back(std::make_unique<Mirrored>(n * element_bytes(tensors.gradients)));
      auto& mask = *masks_.emplace_back(std::make_unique<Mirrored>(n));
      for (std::size_t k = 0; k < n; ++k) put(tensors.parameters, random.unit(), w.host.data(), k);
      for (std::size_t k = 0; k < n; ++k) mask.host[k] = std::byte{k % 5 != 2};
      w.upload(stream);
      mask.upload(stream);
      const auto spec = [&](void* parameters, const void* mask_bytes) {
        return onebitTensor_t{names_.back().c_str(),
                              parameters,
                              n,
                              tensors.parameters,
                              tensors.gradients,
                              i % tensors.groups,
                              tensors.masked ? static_cast<const std::uint8_t*>(mask_bytes) : nullptr};
      };
      on_host.push_back(spec(w.data(), mask.data()));
      on_device.push_back(spec(w.device.data(), mask.device.data()));
    }
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    std::vector<onebitGroup_t> groups(tensors.groups, config.group);
    for (std::size_t i = 1; i < groups.size(); ++i) groups[i].lr *= 1 + static_cast<double>(i);
    if (groups.size() > 1) {
      config.groups = groups.data();
      config.ngroups = groups.size();
    }
    if (comm != nullptr) {
      EXPECT_TRUE(succeeded(onebitOptimizerCreate(&host_, &config, on_host.data(), on_host.size(), comm)));
    }
    const onebitDevice_t device{sizeof device, nccl_comm, stream, settings};
    made_ = onebitOptimizerCreateOnDevice(&device_, &config, on_device.data(), on_device.size(), &device);
  }
  OptimizerTwins(const OptimizerTwins&) = delete;
  OptimizerTwins& operator=(const OptimizerTwins&) = delete;
  ~OptimizerTwins() {
    EXPECT_TRUE(succeeded(onebitOptimizerDestroy(host_)));
    EXPECT_TRUE(succeeded(onebitOptimizerDestroy(device_)));
  }

  onebitResult_t made() const { return made_; }
  onebitOptimizer_t host() { return host_; }
  onebitOptimizer_t device() { return device_; }
  std::size_t count() const { return tensors_.sizes.size(); }

  /// Element i of this rank's gradient of a tensor in step `step`; `spoil` may change it.
  using Spoil = std::function<float(std::size_t tensor, std::size_t i, float value)>;
  void set_gradients(int step, const Spoil& spoil = {}) {
    Random random(1000 * static_cast<std::uint64_t>(step) + rank_);
    for (std::size_t t = 0; t < count(); ++t) {
      for (std::size_t i = 0; i < tensors_.sizes[t]; ++i) {
        float value =
            0.1F * static_cast<float>(i % 7) * std::sin(static_cast<float>(step)) + 0.2F * random.unit();
        if (spoil) value = spoil(t, i, value);
        put(tensors_.gradients, value, g_[t]->host.data(), i);
      }
      g_[t]->upload(stream_);
    }
  }
  /// Steps the device's; `without`: a tensor without a gradient.
  onebitResult_t step_device(int* skipped = nullptr, std::size_t without = SIZE_MAX) {
    std::vector<const void*> gradients;
    for (const auto& each : g_) gradients.push_back(each->device.data());
    if (without < gradients.size()) gradients[without] = nullptr;
    return onebitOptimizerStep(device_, gradients.data(), skipped);
  }
  onebitResult_t step_host(int* skipped = nullptr, std::size_t without = SIZE_MAX) {
    std::vector<const void*> gradients;
    for (const auto& each : g_) gradients.push_back(each->data());
    if (without < gradients.size()) gradients[without] = nullptr;
    return onebitOptimizerStep(host_, gradients.data(), skipped);
  }
  /// Both, and compares parameters.
  ::testing::AssertionResult step(int number, const Spoil& spoil = {}, std::size_t without = SIZE_MAX) {
    set_gradients(number, spoil);
    int ours = 0, theirs = 0;
    if (const auto host = succeeded(step_host(&ours, without)); !host) return host;
    if (const auto device = succeeded(step_device(&theirs, without)); !device) return device;
    if (ours != theirs) return ::testing::AssertionFailure() << "one of them skips step " << number;
    return same_parameters() << "step " << number;
  }

  std::vector<std::vector<std::byte>> device_parameters() const {
    std::vector<std::vector<std::byte>> all;
    for (const auto& each : w_) all.push_back(each->device.read(stream_));
    return all;
  }
  ::testing::AssertionResult same_parameters() const {
    const auto theirs = device_parameters();
    for (std::size_t t = 0; t < count(); ++t) {
      if (theirs[t] == w_[t]->host) continue;
      std::size_t i = 0;
      while (theirs[t][i] == w_[t]->host[i]) ++i;
      return ::testing::AssertionFailure()
             << "tensor " << t << " differs from byte " << i << " of " << theirs[t].size() << " on, ";
    }
    return ::testing::AssertionSuccess();
  }
  static std::vector<float> state(onebitOptimizer_t optimizer, std::size_t tensor, const char* name,
                                  std::size_t n) {
    std::vector<float> values(n);
    EXPECT_TRUE(succeeded(onebitOptimizerGetState(optimizer, tensor, name, values.data(), n)));
    return values;
  }
  /// Momentum, variance, coefficients and where they stand.
  void expect_same_state() {
    for (std::size_t t = 0; t < count(); ++t) {
      for (const char* const name : {"exp_avg", "exp_avg_sq"}) {
        const auto ours = state(host_, t, name, tensors_.sizes[t]);
        const auto theirs = state(device_, t, name, tensors_.sizes[t]);
        EXPECT_TRUE(ours.empty() || std::memcmp(ours.data(), theirs.data(), 4 * ours.size()) == 0)
            << name << t;
      }
      double ours = 0, theirs = 0;
      EXPECT_TRUE(succeeded(onebitOptimizerGetCoefficient(host_, t, &ours)));
      EXPECT_TRUE(succeeded(onebitOptimizerGetCoefficient(device_, t, &theirs)));
      EXPECT_EQ(ours, theirs) << t;
    }
    double norms[4];
    EXPECT_TRUE(succeeded(onebitOptimizerResidualNorm(host_, &norms[0], &norms[1])));
    EXPECT_TRUE(succeeded(onebitOptimizerResidualNorm(device_, &norms[2], &norms[3])));
    EXPECT_EQ(norms[0], norms[2]);
    EXPECT_EQ(norms[1], norms[3]);
    const auto ours = info(host_), theirs = info(device_);
    EXPECT_EQ(ours.steps, theirs.steps);
    EXPECT_EQ(ours.skipped_steps, theirs.skipped_steps);
    EXPECT_EQ(ours.compressed, theirs.compressed);
    EXPECT_EQ(ours.in_common, theirs.in_common);
  }
  static onebitOptimizerInfo_t info(onebitOptimizer_t optimizer) {
    onebitOptimizerInfo_t info{};
    info.size = sizeof info;
    EXPECT_TRUE(succeeded(onebitOptimizerGetInfo(optimizer, &info)));
    return info;
  }

 private:
  const Tensors tensors_;
  const std::uint64_t rank_;
  const cudaStream_t stream_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Mirrored>> w_, g_, masks_;
  onebitOptimizer_t host_ = nullptr;
  onebitOptimizer_t device_ = nullptr;
  onebitResult_t made_ = onebitSuccess;
};

/// Under which 36 steps pass through every stage and interval.
inline onebitOptimizerConfig_t short_config(onebitOptimizerType_t type) {
  onebitOptimizerConfig_t config;
  EXPECT_TRUE(succeeded(onebitOptimizerConfigInit(type, &config)));
  config.group.lr = 0.01;
  config.group.weight_decay = 0.01;
  config.freeze_step = 12;
  config.var_freeze_step = 20;
  config.var_update_scaler = 3;
  config.local_step_scaler = 6;
  config.local_step_clipper = 4;
  return config;
}
constexpr onebitOptimizerType_t kAllTypes[] = {onebitLamb, onebitAdam, onebitOneBitLamb, onebitOneBitAdam,
                                               onebitZeroOneAdam};
constexpr onebitOptimizerType_t kOneBitTypes[] = {onebitOneBitLamb, onebitOneBitAdam, onebitZeroOneAdam};

}  // namespace onebit::testing
