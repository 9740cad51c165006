// An optimizer's memory, passes and exchange on a stream of a CUDA device and a communicator of NCCL's: all
// of it that needs CUDA.
//
// Calls put work on the stream and return; those that give a Status wait for it where they say so, for as
// long as the settings allow, and meanwhile look whether NCCL has lost a rank. Invariant: after the first
// failure nothing more is run, so that what passes had left before can still be read: it is read on a stream
// of its own, since the job's may be held up by NCCL for good. Threads: one at a time; any device may be
// current.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/nccl/nccl_communicator.h"
#include "optimizer/cuda/pass_queue.h"
#include "optimizer/cuda/side_table.h"

namespace onebit::optimizer::cuda {

class DeviceSide {
 public:
  static Result<std::unique_ptr<DeviceSide>> create(const SideSettings& settings);
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;
  ~DeviceSide();

  // ---- as Memory's ----
  Status allocate(std::size_t bytes, void** memory);
  void release(void* memory);
  void zero(void* to, std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);
  Status read(void* to, const void* from, std::size_t bytes);
  Status write(void* to, const void* from, std::size_t bytes);
  Status check(const void* address, std::size_t alignment) const;

  // ---- as Runner's ----
  Status make_queue(std::span<const std::size_t> counts);
  void run(Pass pass, std::span<const Job> jobs);
  Status fetch(std::span<Job> jobs);
  Status agree(std::span<Job> jobs, Agreement& agreement);
  void choose_steps(std::span<const LambRule> rules, std::span<const LambNumbers> numbers);
  Status fetch_numbers(std::span<LambNumbers> numbers);

  // ---- as Exchange's ----
  Status mean(float* data, std::size_t count);
  Status compressed_mean(float* data, std::size_t unit);
  Status complete();
  Status all_gather(const void* send, void* receive, std::size_t bytes);
  const Status& usable() const { return status_; }

  Status add_unit(std::size_t count, bool whole);
  Status read_residual(std::size_t unit, float* worker, float* owner);
  Status write_residual(std::size_t unit, const float* worker, const float* owner);
  void clear_residuals();
  bool has_worthless_residuals() const { return are_worthless_; }
  std::size_t residual_bytes() const;

 private:
  struct Unit {
    std::size_t count;
    nccl::Residuals residuals;
  };

  explicit DeviceSide(const SideSettings& settings) : settings_(settings) {}
  cudaError_t prepare();
  nccl::MemorySource source() const { return {{}, settings_.stream}; }
  bool is_alone() const { return settings_.ranks == 1; }
  Status failure(cudaError_t error, const char* what) const;
  /// Keeps the first failure.
  const Status& give_up(Status why);
  /// What a call came to: it is kept when it failed.
  void note(cudaError_t error, const char* what);
  void note(nccl::Result result, const char* what);
  /// The state has changed up to here: what is read after a failure is that.
  void mark_settled();
  /// Waits for all that the stream was given; `what` is for the message.
  Status wait(const char* what);
  /// Looks until `look` no longer says cudaErrorNotReady, at most as long as the settings allow; `asks_nccl`:
  /// or until NCCL has lost a rank.
  template <typename Look>
  Status look_until_ready(const char* what, bool asks_nccl, Look look) const;
  Status look_at_nccl(const char* what) const;
  /// Copies and waits on the own stream.
  Status copy_now(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  /// Calls each(pointer to the partition's worker errors, begin in the unit, elements) for all partitions.
  template <typename Each>
  Status for_partitions(const Unit& unit, Each each) const;
  std::size_t owned(const Unit& unit) const;

  const SideSettings settings_;
  Status status_;
  cudaStream_t own_stream_ = nullptr;
  cudaEvent_t settled_ = nullptr;
  std::unique_ptr<PassQueue> queue_;
  std::unique_ptr<nccl::NcclCommunicator> communicator_;  ///< made with the first unit
  std::vector<Unit> units_;
  bool are_worthless_ = false;
  bool are_cleared_ = false;  ///< after a failure: whatever the device has, they count as 0
  nccl::DeviceMemory agreement_, gathered_;
  Agreement* host_agreement_ = nullptr;  ///< pinned
};

}  // namespace onebit::optimizer::cuda
