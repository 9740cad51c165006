// Passes of one optimizer on a stream of a CUDA device, with the memory for what they find out.
//
// Invariant: `run` and `choose_steps` put work on the stream, allocate nothing and wait for nothing; `fetch`
// and `fetch_numbers` wait for the stream. Threads: one at a time, with the device current that was so when
// it was made.
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
  ~PassQueue();

  cudaError_t run(Pass pass, std::span<const Job> jobs);
  /// The results of the last pass, into the jobs.
  cudaError_t fetch(std::span<Job> jobs);
  /// `numbers` are read the first time, and the first time after fetch_numbers; then the device has them.
  cudaError_t choose_steps(std::span<const LambRule> rules, std::span<const LambNumbers> numbers);
  cudaError_t fetch_numbers(std::span<LambNumbers> numbers);

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
