#include "optimizer/cuda/pass_queue.h"

#include <algorithm>

namespace onebit::optimizer::cuda {

PassQueue::PassQueue(std::span<const std::size_t> counts, cudaStream_t stream)
    : stream_(stream), tensors_(counts.size()), pieces_(counts.size()) {
  first_block_.push_back(0);
  for (const std::size_t count : counts) {
    first_block_.push_back(first_block_.back() + (count + kBlock - 1) / kBlock);
  }
}

Result<std::unique_ptr<PassQueue>> PassQueue::create(std::span<const std::size_t> counts,
                                                     cudaStream_t stream) {
  std::unique_ptr<PassQueue> made(new PassQueue(counts, stream));
  const nccl::MemorySource source{{}, stream};
  bool has_memory = true;
  const auto take = [&](std::size_t bytes) {
    nccl::DeviceMemory memory(source, std::max<std::size_t>(bytes, 1));
    has_memory = has_memory && memory.data() != nullptr;
    return memory;
  };
  const std::size_t jobs = counts.size();
  made->partials_ = take(made->first_block_.back() * sizeof(Partial));
  made->blocks_ = take(made->first_block_.size() * sizeof(std::size_t));
  made->results_ = take(jobs * sizeof(JobResult));
  made->numbers_ = take(jobs * sizeof(LambNumbers));
  made->steps_ = take(jobs * sizeof(float));
  if (!has_memory) {
    return Status(Code::kSystemError, "no device memory is left for what an optimizer's passes find out");
  }
  void* pinned = nullptr;
  cudaError_t error = cudaMallocHost(&pinned, std::max<std::size_t>(1, jobs * sizeof(JobResult)));
  made->host_results_ = static_cast<JobResult*>(pinned);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(made->blocks_.data(), made->first_block_.data(), made->blocks_.bytes(),
                            cudaMemcpyHostToDevice, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) return made;
  return Status::error(Code::kSystemError, "preparing an optimizer's passes: {}", cudaGetErrorString(error));
}

PassQueue::~PassQueue() {
  if (host_results_ == nullptr) return;
  cudaStreamSynchronize(stream_);  // a copy to it may be under way
  cudaFreeHost(host_results_);
}

cudaError_t PassQueue::run(Pass pass, std::span<const Job> jobs) {
  const bool chosen = pass == Pass::kApply && has_steps_;
  has_steps_ = false;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    pieces_[i] = {.elements = job.count,
                  .arrays = job.arrays,
                  .gradient = job.gradient,
                  .gradient_mask = job.gradient_mask,
                  .narrow_parameters = job.narrow_parameters,
                  .partials = partials_.as<Partial>() + first_block_[i],
                  .step = chosen ? steps_.as<float>() + i : nullptr,
                  .scalars = job.scalars,
                  .gradient_type = job.gradient_type,
                  .narrow_type = job.narrow_type,
                  .masked = job.masked};
  }
  is_added_up_ = false;
  return run_pass(pass, pieces_, stream_);
}

cudaError_t PassQueue::add_up() {
  if (is_added_up_) return cudaSuccess;
  is_added_up_ = true;
  return cuda::add_up(partials_.as<Partial>(), blocks_.as<std::size_t>(), tensors_, results_.as<JobResult>(),
                      stream_);
}

cudaError_t PassQueue::begin_fetch() {
  const cudaError_t error = add_up();
  if (error != cudaSuccess) return error;
  return cudaMemcpyAsync(host_results_, results_.data(), tensors_ * sizeof(JobResult), cudaMemcpyDeviceToHost,
                         stream_);
}

void PassQueue::end_fetch(std::span<Job> jobs) const {
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].result = host_results_[i];
}

cudaError_t PassQueue::bring_together(double word, Agreement* own) {
  const cudaError_t error = add_up();
  if (error != cudaSuccess) return error;
  return cuda::bring_together(results_.as<JobResult>(), tensors_, word, own, stream_);
}

cudaError_t PassQueue::choose_steps(std::span<const LambRule> rules, std::span<const LambNumbers> numbers) {
  cudaError_t error = add_up();
  if (error == cudaSuccess && !has_numbers_) {
    // From pageable memory: it has been read when the call returns.
    error = cudaMemcpyAsync(numbers_.data(), numbers.data(), numbers.size_bytes(), cudaMemcpyHostToDevice,
                            stream_);
  }
  if (error == cudaSuccess) {
    error = cuda::choose_steps(rules, results_.as<JobResult>(), numbers_.as<LambNumbers>(),
                               steps_.as<float>(), stream_);
  }
  has_numbers_ = has_steps_ = error == cudaSuccess;
  return error;
}

}  // namespace onebit::optimizer::cuda
