// DeviceSide: its life, its waits, memory and passes.

#include "optimizer/cuda/device_side.h"

#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "collective/nccl/device_guard.h"

namespace onebit::optimizer::cuda {
namespace {

using nccl::DeviceGuard;

/// A wait looks this often without a pause, then with one.
constexpr unsigned kEagerLooks = 200;
constexpr std::chrono::microseconds kPause{20};
/// Looks between two at NCCL.
constexpr unsigned kLooksAtNccl = 64;

}  // namespace

Result<std::unique_ptr<DeviceSide>> DeviceSide::create(const SideSettings& settings) {
  std::unique_ptr<DeviceSide> made(new DeviceSide(settings));
  const DeviceGuard guard(settings.device);
  const cudaError_t error = guard.error() == cudaSuccess ? made->prepare() : guard.error();
  if (error != cudaSuccess) return made->failure(error, "making an optimizer");
  made->agreement_ = nccl::DeviceMemory(made->source(), sizeof(Agreement));
  if (made->agreement_.data() == nullptr) {
    return made->failure(cudaErrorMemoryAllocation, "making an optimizer");
  }
  return made;
}

cudaError_t DeviceSide::prepare() {
  cudaError_t error = cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&settled_, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  void* pinned = nullptr;
  error = cudaMallocHost(&pinned, sizeof(Agreement));
  host_agreement_ = static_cast<Agreement*>(pinned);
  return error;
}

DeviceSide::~DeviceSide() {
  const DeviceGuard guard(settings_.device);
  // Memory goes back in the order of the stream. What the stream could still write to on the host is left to
  // the process when NCCL holds the stream up.
  const auto look = [&] { return cudaStreamQuery(settings_.stream); };
  const bool is_over = status_.ok() && look_until_ready("ending an optimizer", false, look).ok();
  if (is_over && host_agreement_ != nullptr) cudaFreeHost(host_agreement_);
  if (!is_over && queue_ != nullptr) queue_->abandon();
  queue_.reset();
  units_.clear();
  communicator_.reset();
  agreement_ = nccl::DeviceMemory();
  gathered_ = nccl::DeviceMemory();
  if (settled_ != nullptr) cudaEventDestroy(settled_);
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
}

// ---- failures and waits ----

Status DeviceSide::failure(cudaError_t error, const char* what) const {
  return Status::error(Code::kSystemError, "{} on CUDA device {}: {}", what, settings_.device,
                       cudaGetErrorString(error));
}

const Status& DeviceSide::give_up(Status why) {
  if (status_.ok()) status_ = std::move(why);
  return status_;
}

void DeviceSide::note(cudaError_t error, const char* what) {
  if (error != cudaSuccess) give_up(failure(error, what));
}

void DeviceSide::note(nccl::Result result, const char* what) {
  if (result == nccl::kSuccess) return;
  const Code code = result == nccl::kRemoteError ? Code::kRemoteError : Code::kSystemError;
  give_up(Status::error(code, "rank {}, {}: NCCL says '{}'", settings_.rank, what,
                        settings_.nccl.error_string(result)));
}

void DeviceSide::mark_settled() {
  if (status_.ok()) note(cudaEventRecord(settled_, settings_.stream), "cudaEventRecord");
}

Status DeviceSide::look_at_nccl(const char* what) const {
  if (settings_.comm == nullptr) return Status();
  nccl::Result error = nccl::kSuccess;
  const nccl::Result asked = settings_.nccl.async_error(settings_.comm, &error);
  const nccl::Result result = asked != nccl::kSuccess ? asked : error;
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status();
  return Status::error(Code::kRemoteError, "rank {} has lost the others, {}: NCCL says '{}'", settings_.rank,
                       what, settings_.nccl.error_string(result));
}

template <typename Look>
Status DeviceSide::look_until_ready(const char* what, bool asks_nccl, Look look) const {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(settings_.milliseconds));
  for (unsigned number = 0;; ++number) {
    const cudaError_t error = look();
    if (error == cudaSuccess) return Status();
    if (error != cudaErrorNotReady) return failure(error, what);
    cudaGetLastError();  // not ready is no fault
    if (asks_nccl && number % kLooksAtNccl == 0) ONEBIT_RETURN_IF_ERROR(look_at_nccl(what));
    if (deadline.passed()) {
      return Status::error(
          Code::kTimeout,
          "rank {}, {}: the stream has not come to it in {} ms (ONEBIT_TIMEOUT): another rank "
          "has not made this call, or is gone; end the communicator with ncclCommAbort",
          settings_.rank, what, settings_.milliseconds);
    }
    if (number >= kEagerLooks) std::this_thread::sleep_for(kPause);
  }
}

Status DeviceSide::wait(const char* what) {
  ONEBIT_RETURN_IF_ERROR(status_);
  Status status = look_until_ready(what, true, [&] { return cudaStreamQuery(settings_.stream); });
  // What was to come from a rank that is gone has not come.
  if (status.ok()) status = look_at_nccl(what);
  return status.ok() ? status : give_up(std::move(status));
}

// ---- memory ----

Status DeviceSide::allocate(std::size_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes == 0) return Status();
  const DeviceGuard guard(settings_.device);
  cudaError_t error = guard.error();
  if (error == cudaSuccess) error = cudaMallocAsync(memory, bytes, settings_.stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(*memory, 0, bytes, settings_.stream);
  if (error == cudaSuccess) return Status();
  cudaGetLastError();
  return Status::error(Code::kSystemError, "{} bytes of memory on CUDA device {}: {}", bytes,
                       settings_.device, cudaGetErrorString(error));
}

void DeviceSide::release(void* memory) {
  const DeviceGuard guard(settings_.device);
  cudaFreeAsync(memory, settings_.stream);
}

void DeviceSide::zero(void* to, std::size_t bytes) {
  if (!status_.ok() || bytes == 0) return;
  const DeviceGuard guard(settings_.device);
  note(cudaMemsetAsync(to, 0, bytes, settings_.stream), "cudaMemsetAsync");
  mark_settled();
}

void DeviceSide::copy(void* to, const void* from, std::size_t bytes) {
  if (!status_.ok() || bytes == 0) return;
  const DeviceGuard guard(settings_.device);
  note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, settings_.stream), "cudaMemcpyAsync");
  mark_settled();
}

Status DeviceSide::copy_now(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, own_stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(own_stream_);
  return error == cudaSuccess ? Status() : failure(error, "copying the state");
}

Status DeviceSide::read(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  const DeviceGuard guard(settings_.device);
  if (!wait("reading the state").ok()) {
    ONEBIT_RETURN_IF_ERROR(
        look_until_ready("reading the state", false, [&] { return cudaEventQuery(settled_); }));
  }
  return copy_now(to, from, bytes, cudaMemcpyDeviceToHost);
}

Status DeviceSide::write(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  const DeviceGuard guard(settings_.device);
  ONEBIT_RETURN_IF_ERROR(wait("writing the state"));
  const Status status = copy_now(to, from, bytes, cudaMemcpyHostToDevice);
  return status.ok() ? status : give_up(status);
}

Status DeviceSide::check(const void* address, std::size_t alignment) const {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
    return Status::error(Code::kInvalidArgument, "the memory at {} is not aligned to elements of {} bytes",
                         address, alignment);
  }
  const DeviceGuard guard(settings_.device);
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
  if (error != cudaSuccess) {
    cudaGetLastError();
    attributes.type = cudaMemoryTypeUnregistered;
  }
  if (attributes.type == cudaMemoryTypeManaged) return Status();
  if (attributes.type != cudaMemoryTypeDevice) {
    return Status::error(Code::kInvalidArgument,
                         "the memory at {} is the host's, but this optimizer's is that of CUDA device {}",
                         address, settings_.device);
  }
  if (attributes.device == settings_.device) return Status();
  return Status::error(
      Code::kInvalidArgument,
      "the memory at {} is that of CUDA device {}, but this optimizer's is that of device {}", address,
      attributes.device, settings_.device);
}

// ---- passes ----

Status DeviceSide::make_queue(std::span<const std::size_t> counts) {
  const DeviceGuard guard(settings_.device);
  ONEBIT_ASSIGN_OR_RETURN(queue_, PassQueue::create(counts, settings_.stream));
  return Status();
}

void DeviceSide::run(Pass pass, std::span<const Job> jobs) {
  if (!status_.ok()) return;
  const DeviceGuard guard(settings_.device);
  note(queue_->run(pass, jobs), "a pass");
  if ((touched(pass).writes & ~kX) != 0) mark_settled();
}

Status DeviceSide::fetch(std::span<Job> jobs) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const DeviceGuard guard(settings_.device);
  note(queue_->begin_fetch(), "a pass");
  ONEBIT_RETURN_IF_ERROR(wait("waiting for a pass"));
  queue_->end_fetch(jobs);
  return Status();
}

Status DeviceSide::agree(std::span<Job> jobs, Agreement& agreement) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const DeviceGuard guard(settings_.device);
  auto* const own = agreement_.as<Agreement>();
  note(queue_->begin_fetch(), "a pass");
  note(queue_->bring_together(agreement.word, own), "a pass");
  if (status_.ok() && !is_alone()) {
    note(settings_.nccl.all_reduce(own, own, kAgreementNumbers, nccl::kFloat64, nccl::kSum, settings_.comm,
                                   settings_.stream),
         "agreeing on the step");
  }
  if (status_.ok()) {
    note(cudaMemcpyAsync(host_agreement_, own, sizeof *own, cudaMemcpyDeviceToHost, settings_.stream),
         "agreeing on the step");
  }
  ONEBIT_RETURN_IF_ERROR(wait("agreeing on the step"));
  queue_->end_fetch(jobs);
  agreement = *host_agreement_;
  return Status();
}

void DeviceSide::choose_steps(std::span<const LambRule> rules, std::span<const LambNumbers> numbers) {
  if (!status_.ok()) return;
  const DeviceGuard guard(settings_.device);
  note(queue_->choose_steps(rules, numbers), "LAMB's coefficients");
  mark_settled();
}

Status DeviceSide::fetch_numbers(std::span<LambNumbers> numbers) {
  if (queue_->numbers() == nullptr) return Status();
  ONEBIT_RETURN_IF_ERROR(read(numbers.data(), queue_->numbers(), numbers.size_bytes()));
  queue_->take_numbers();
  return Status();
}

}  // namespace onebit::optimizer::cuda
