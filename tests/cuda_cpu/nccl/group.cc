#include "cuda_cpu/nccl/group.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_cpu/engine/sanitizers.h"

namespace onebit::nccl_stand_in {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<CommunicatorPointer> new_ones;
  std::vector<std::pair<CommunicatorPointer, std::vector<Task>>> work;  ///< a communicator's tasks, in order
};
thread_local Group group;

/// What one host function of a stream does.
struct Job {
  CommunicatorPointer communicator;
  std::vector<Task> tasks;
  bool captured;
  std::uint64_t number;  ///< of its turn, when it is not captured
};

void run_job(Job& job) {
  Communicator& communicator = *job.communicator;
  if (!job.captured) communicator.wait_for_turn(job.number);
  cuda_cpu::acquire(communicator.edge());
  if (!communicator.broken()) run(communicator, job.tasks);
  cuda_cpu::release(communicator.edge());
  if (!job.captured) communicator.end_turn(job.number);
}
void CUDART_CB run_once(void* data) {
  const std::unique_ptr<Job> job(static_cast<Job*>(data));
  run_job(*job);
}
void CUDART_CB run_again(void* data) {
  run_job(*static_cast<Job*>(data));
}

/// Sets a device, and the one before at the end.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    ::cudaGetDevice(&before_);
    ::cudaSetDevice(device);
  }
  ~OnDevice() { ::cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

cudaError_t enqueue(const CommunicatorPointer& communicator, std::vector<Task> tasks, cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  if (const cudaError_t error = ::cudaStreamIsCapturing(stream, &status); error != cudaSuccess) return error;
  const bool captured = status != cudaStreamCaptureStatusNone;
  auto job = std::make_unique<Job>(
      Job{communicator, std::move(tasks), captured, captured ? 0 : communicator->take_number()});
  if (!captured) {
    const cudaError_t error = ::cudaLaunchHostFunc(stream, &run_once, job.get());
    if (error == cudaSuccess) static_cast<void>(job.release());  // run_once owns it
    return error;
  }
  // A graph may run it any number of times; it must not keep the communicator that keeps it.
  job->communicator = CommunicatorPointer(CommunicatorPointer(), communicator.get());
  const std::shared_ptr<Job> kept = std::move(job);
  communicator->keep(kept);
  return ::cudaLaunchHostFunc(stream, &run_again, kept.get());
}

/// One job for all tasks, on the stream of the first; the other streams wait for it, and it for them.
ncclResult_t launch(const CommunicatorPointer& communicator, std::vector<Task> tasks) {
  const cuda_cpu::Unobserved quiet;
  const OnDevice device(communicator->device());
  const cudaStream_t stream = tasks.front().stream;
  std::vector<cudaStream_t> others;
  for (const Task& task : tasks) {
    const bool known =
        task.stream == stream || std::find(others.begin(), others.end(), task.stream) != others.end();
    if (!known) others.push_back(task.stream);
  }
  cudaEvent_t event = nullptr;
  cudaError_t error = ::cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  const auto order = [&](cudaStream_t before, cudaStream_t after) {
    if (error == cudaSuccess) error = ::cudaEventRecord(event, before);
    if (error == cudaSuccess) error = ::cudaStreamWaitEvent(after, event, 0);
  };
  for (const cudaStream_t other : others) order(other, stream);
  if (error == cudaSuccess) error = enqueue(communicator, std::move(tasks), stream);
  for (const cudaStream_t other : others) order(stream, other);
  ::cudaEventDestroy(event);
  if (error == cudaSuccess) return ncclSuccess;
  communicator->break_off(ncclUnhandledCudaError);
  return fail(ncclUnhandledCudaError,
              std::string("the operation did not get into its stream: ") + ::cudaGetErrorName(error));
}

/// Starts all that the group has gathered.
ncclResult_t start(Group gathered) {
  std::vector<CommunicatorPointer> waited_for;
  bool in_progress = false;
  for (const CommunicatorPointer& communicator : gathered.new_ones) {
    if (communicator->blocking()) {
      waited_for.push_back(communicator);
    } else {
      in_progress = true;
    }
  }
  ncclResult_t result = Communicator::finish(waited_for);
  for (auto& [communicator, tasks] : gathered.work) {
    if (result != ncclSuccess) break;
    if (communicator->blocking()) {
      result = launch(communicator, std::move(tasks));
    } else {
      communicator->defer(
          [communicator = communicator, tasks = std::move(tasks)] { return launch(communicator, tasks); });
      in_progress = true;
    }
  }
  if (result != ncclSuccess) return result;
  return in_progress ? ncclInProgress : ncclSuccess;
}

}  // namespace

void group_start() {
  ++group.depth;
}

ncclResult_t group_end() {
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const cuda_cpu::Unobserved quiet;
  Group gathered = std::exchange(group, Group());
  if (gathered.error != ncclSuccess) return gathered.error;
  return start(std::move(gathered));
}

ncclResult_t submit(const CommunicatorPointer& communicator, const Task& task) {
  const cuda_cpu::Unobserved quiet;
  Group alone;
  Group& target = group.depth > 0 ? group : alone;
  auto found = std::find_if(target.work.begin(), target.work.end(),
                            [&](const auto& entry) { return entry.first == communicator; });
  if (found == target.work.end()) found = target.work.insert(found, {communicator, {}});
  found->second.push_back(task);
  return group.depth > 0 ? ncclSuccess : start(std::move(alone));
}

ncclResult_t submit(const CommunicatorPointer& new_one) {
  const cuda_cpu::Unobserved quiet;
  if (group.depth > 0) {
    group.new_ones.push_back(new_one);
    return ncclSuccess;
  }
  Group alone;
  alone.new_ones.push_back(new_one);
  return start(std::move(alone));
}

ncclResult_t fail_group(ncclResult_t result) {
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
  return result;
}

}  // namespace onebit::nccl_stand_in
