#include "optimizer/cuda/device_runner.h"

namespace onebit::optimizer {
namespace {

class DeviceRunner final : public Runner {
 public:
  DeviceRunner(const onebit::cuda::Library& library, cuda::PassQueue* queue)
      : library_(library), queue_(queue) {}
  ~DeviceRunner() override { library_.destroy_passes(queue_); }

  void run(Pass pass, std::span<Job> jobs) override {
    if (error_ == cudaSuccess) note(library_.run_pass(queue_, pass, jobs.data(), jobs.size()), "a pass");
  }
  Status fetch(std::span<Job> jobs) override {
    if (error_ == cudaSuccess) note(library_.fetch_results(queue_, jobs.data(), jobs.size()), "a pass");
    return status_;
  }
  void choose_steps(std::span<const LambRule> rules, std::span<Job> /*jobs*/,
                    std::span<LambNumbers> numbers) override {
    if (error_ != cudaSuccess) return;
    note(library_.choose_steps(queue_, rules.data(), numbers.data(), rules.size()), "LAMB's coefficients");
  }
  Status fetch_numbers(std::span<LambNumbers> numbers) override {
    if (error_ != cudaSuccess) return status_;
    note(library_.fetch_numbers(queue_, numbers.data(), numbers.size()), "LAMB's coefficients");
    return status_;
  }

 private:
  void note(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    error_ = error;
    status_ =
        Status::error(Code::kSystemError, "{} on the CUDA device: {}", what, library_.error_name(error));
  }

  const onebit::cuda::Library& library_;
  cuda::PassQueue* const queue_;
  cudaError_t error_ = cudaSuccess;
  Status status_;
};

}  // namespace

Result<std::unique_ptr<Runner>> make_device_runner(const onebit::cuda::Library& library,
                                                   std::span<const std::size_t> counts, cudaStream_t stream) {
  char message[256] = "";
  cuda::PassQueue* const queue =
      library.create_passes(counts.data(), counts.size(), stream, message, sizeof message);
  if (queue == nullptr) return Status(Code::kSystemError, message);
  return std::unique_ptr<Runner>(std::make_unique<DeviceRunner>(library, queue));
}

}  // namespace onebit::optimizer
