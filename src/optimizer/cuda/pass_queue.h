// Passes of one optimizer on a stream of a CUDA device, with the memory for what they find out.
//
// Invariant: nothing here waits for the stream but `create` and the end of a queue, and nothing but `create`
// allocates. Threads: one at a time, with the device current that was so when it was made.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/nccl/device_memory.h"
#include "optimizer/cuda/kernels.h"

namespace onebit::optimizer::cuda {

class PassQueue {
 public:
  /// `counts`: the elements of each job that it will be given; of several streams they need an order.
  static Result<std::unique_ptr<PassQueue>> create(std::span<const std::size_t> counts, cudaStream_t stream);
  PassQueue(const PassQueue&) = delete;
  PassQueue& operator=(const PassQueue&) = delete;
  /// Waits for the stream.
  ~PassQueue();

  cudaError_t run(Pass pass, std::span<const Job> jobs);
  /// Sends the results of the last pass to the host ...
  cudaError_t begin_fetch();
  /// ... and, when the stream has come there, puts them into the jobs.
  void end_fetch(std::span<Job> jobs) const;
  /// What the results of the last pass bring into the agreement.
  cudaError_t bring_together(double word, Agreement* own);
  /// `numbers` are read the first time, and the first time after `take_numbers`; then the device has them.
  cudaError_t choose_steps(std::span<const LambRule> rules, std::span<const LambNumbers> numbers);
  /// Where the device has the numbers; null while the host has them.
  const LambNumbers* numbers() const { return has_numbers_ ? numbers_.as<LambNumbers>() : nullptr; }
  /// The host has them from now on.
  void take_numbers() { has_numbers_ = false; }
  /// The stream may never come to its end: what it could still write to on the host is left to the process.
  void abandon() { host_results_ = nullptr; }

 private:
  PassQueue(std::span<const std::size_t> counts, cudaStream_t stream);
  /// Adds the last pass's partials up, once.
  cudaError_t add_up();

  const cudaStream_t stream_;
  const std::size_t tensors_;
  std::vector<std::size_t> first_block_;  // by job, and the number of all blocks
  std::vector<PassPiece> pieces_;
  nccl::DeviceMemory partials_, blocks_, results_, numbers_, steps_;
  JobResult* host_results_ = nullptr;  // pinned
  bool is_added_up_ = true;
  bool has_numbers_ = false;  // the device
  bool has_steps_ = false;    // chosen for the coming kApply
};

}  // namespace onebit::optimizer::cuda
