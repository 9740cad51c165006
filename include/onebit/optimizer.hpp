// The C++ face of optimizer.h: an RAII optimizer; errors are exceptions of your own program. Header only,
// C++17.
//
// Threads: as in optimizer.h.
#pragma once

#include <onebit/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <utility>
#include <vector>

namespace onebit {

/// The defaults of a type.
inline onebitOptimizerConfig_t optimizer_config(onebitOptimizerType_t type) {
  onebitOptimizerConfig_t config;
  check(onebitOptimizerConfigInit(type, &config));
  return config;
}

/// From a DeepSpeed section: {"type": "OneBitLamb", "params": {...}}.
inline onebitOptimizerConfig_t optimizer_config(const std::string& json) {
  onebitOptimizerConfig_t config;
  check(onebitOptimizerParseConfig(json.c_str(), &config));
  return config;
}

/// A tensor of fp32 parameters with fp32 gradients.
inline onebitTensor_t tensor(const char* name, float* parameters, std::size_t count, std::size_t group = 0,
                             const std::uint8_t* mask = nullptr) {
  return {name, parameters, count, onebitFloat32, onebitFloat32, group, mask};
}

/// Where an optimizer in a GPU's memory is: an ncclComm_t (null: one rank) and a cudaStream_t.
struct Device {
  void* nccl_comm = nullptr;
  void* stream = nullptr;
  const char* settings = nullptr;  ///< "NAME=VALUE" lines
};

/// An optimizer, destroyed with the object; its communicator and stream must outlive it.
class Optimizer {
 public:
  Optimizer(const onebitOptimizerConfig_t& config, const std::vector<onebitTensor_t>& tensors,
            const Communicator& communicator) {
    check(onebitOptimizerCreate(&optimizer_, &config, tensors.data(), tensors.size(), communicator.get()));
  }
  Optimizer(const onebitOptimizerConfig_t& config, const std::vector<onebitTensor_t>& tensors,
            const Device& device) {
    const onebitDevice_t place{sizeof place, device.nccl_comm, device.stream, device.settings};
    check(onebitOptimizerCreateOnDevice(&optimizer_, &config, tensors.data(), tensors.size(), &place));
  }
  Optimizer(Optimizer&& other) noexcept : optimizer_(std::exchange(other.optimizer_, nullptr)) {}
  Optimizer& operator=(Optimizer&& other) noexcept {
    std::swap(optimizer_, other.optimizer_);
    return *this;
  }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  ~Optimizer() { onebitOptimizerDestroy(optimizer_); }

  onebitOptimizer_t get() const noexcept { return optimizer_; }
  /// One step with this rank's gradients, a pointer for each tensor; false if all ranks have skipped it.
  bool step(const std::vector<const void*>& gradients) {
    int skipped = 0;
    check(onebitOptimizerStep(optimizer_, gradients.data(), &skipped));
    return skipped == 0;
  }
  void set_learning_rate(double lr, std::size_t group = 0) {
    check(onebitOptimizerSetLearningRate(optimizer_, group, lr));
  }
  void freeze() { check(onebitOptimizerFreeze(optimizer_)); }
  onebitOptimizerInfo_t info() const {
    onebitOptimizerInfo_t info{};
    info.size = sizeof info;
    check(onebitOptimizerGetInfo(optimizer_, &info));
    return info;
  }
  void save(const std::string& directory) const { check(onebitOptimizerSave(optimizer_, directory.c_str())); }
  void save_whole(const std::string& directory) const {
    check(onebitOptimizerSaveWhole(optimizer_, directory.c_str()));
  }
  void load(const std::string& directory) { check(onebitOptimizerLoad(optimizer_, directory.c_str())); }
  /// The state after `step` steps, and no other.
  void load(const std::string& directory, std::int64_t step) {
    check(onebitOptimizerLoadStep(optimizer_, directory.c_str(), step));
  }

 private:
  onebitOptimizer_t optimizer_ = nullptr;
};

}  // namespace onebit
