#include "optimizer/cuda/device_side.h"

#include <algorithm>
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

Status failure(cudaError_t error, const char* what, int device) {
  return Status::error(Code::kSystemError, "{} on CUDA device {}: {}", what, device,
                       cudaGetErrorString(error));
}

}  // namespace

Result<std::unique_ptr<DeviceSide>> DeviceSide::create(const SideSettings& settings) {
  std::unique_ptr<DeviceSide> made(new DeviceSide(settings));
  const DeviceGuard guard(settings.device);
  const cudaError_t error = guard.error() == cudaSuccess ? made->prepare() : guard.error();
  if (error != cudaSuccess) return failure(error, "making an optimizer", settings.device);
  made->agreement_ = nccl::DeviceMemory(made->source(), sizeof(Agreement));
  if (made->agreement_.data() == nullptr) {
    return failure(cudaErrorMemoryAllocation, "making an optimizer", settings.device);
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
  // Memory goes back in the order of the stream; nothing waits for one that NCCL may hold up.
  if (status_.ok() && host_agreement_ != nullptr) {
    cudaStreamSynchronize(settings_.stream);
    cudaFreeHost(host_agreement_);
  }
  if (!status_.ok() && queue_ != nullptr) queue_->abandon();
  queue_.reset();
  units_.clear();
  communicator_.reset();
  agreement_ = nccl::DeviceMemory();
  gathered_ = nccl::DeviceMemory();
  if (settled_ != nullptr) cudaEventDestroy(settled_);
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
}

// ---- failures and waits ----

const Status& DeviceSide::give_up(Status why) {
  if (status_.ok()) status_ = std::move(why);
  return status_;
}

void DeviceSide::note(cudaError_t error, const char* what) {
  if (error != cudaSuccess) give_up(failure(error, what, settings_.device));
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
Status DeviceSide::look_until_ready(const char* what, Look look) const {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(settings_.milliseconds));
  for (unsigned number = 0;; ++number) {
    const cudaError_t error = look();
    if (error == cudaSuccess) return Status();
    if (error != cudaErrorNotReady) return failure(error, what, settings_.device);
    cudaGetLastError();  // not ready is no fault
    if (status_.ok() && number % kLooksAtNccl == 0) ONEBIT_RETURN_IF_ERROR(look_at_nccl(what));
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
  Status status = look_until_ready(what, [&] { return cudaStreamQuery(settings_.stream); });
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
  return error == cudaSuccess ? Status() : failure(error, "copying the state", settings_.device);
}

Status DeviceSide::read(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  const DeviceGuard guard(settings_.device);
  if (!wait("reading the state").ok()) {
    ONEBIT_RETURN_IF_ERROR(look_until_ready("reading the state", [&] { return cudaEventQuery(settled_); }));
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

Status DeviceSide::agree(std::span<Job> jobs, bool has_norms, Agreement& agreement) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const DeviceGuard guard(settings_.device);
  auto* const own = agreement_.as<Agreement>();
  note(queue_->begin_fetch(), "a pass");
  note(queue_->bring_together(has_norms, agreement.word, own), "a pass");
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

// ---- the exchange ----

Status DeviceSide::mean(float* data, std::size_t count) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const DeviceGuard guard(settings_.device);
  // NCCL's own average scales before it sums, which rounds otherwise than the host's.
  note(settings_.nccl.all_reduce(data, data, count, nccl::kFloat32, nccl::kSum, settings_.comm,
                                 settings_.stream),
       "averaging gradients");
  if (status_.ok()) {
    note(scale(data, count, 1.0F / static_cast<float>(settings_.ranks), settings_.stream),
         "averaging gradients");
  }
  return status_;
}

Status DeviceSide::compressed_mean(float* data, std::size_t unit) {
  ONEBIT_RETURN_IF_ERROR(status_);
  const Unit& own = units_[unit];
  are_worthless_ = true;
  nccl::Request request{.communicator = communicator_.get(),
                        .send = data,
                        .receive = data,
                        .shape = own.count,
                        .type = DataType::kFloat32,
                        .op = ReduceOp::kAvg,
                        .stream = settings_.stream,
                        .residuals = &own.residuals};
  note(nccl::run({&request, 1}), "exchanging in 1 bit");
  return status_;
}

Status DeviceSide::complete() {
  const DeviceGuard guard(settings_.device);
  ONEBIT_RETURN_IF_ERROR(wait("exchanging"));
  are_worthless_ = false;
  return Status();
}

Status DeviceSide::all_gather(const void* send, void* receive, std::size_t bytes) {
  const DeviceGuard guard(settings_.device);
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  if (is_alone()) {
    std::copy_n(static_cast<const std::byte*>(send), bytes, static_cast<std::byte*>(receive));
    return Status();
  }
  const std::size_t all = bytes * settings_.ranks;
  if (gathered_.bytes() < all) gathered_ = nccl::DeviceMemory(source(), all);
  if (gathered_.bytes() < all) note(cudaErrorMemoryAllocation, "what ranks tell each other");
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  std::byte* const own = gathered_.data() + settings_.rank * bytes;
  if (const Status status = copy_now(own, send, bytes, cudaMemcpyHostToDevice); !status.ok()) {
    return give_up(status);
  }
  note(
      settings_.nccl.all_gather(own, gathered_.data(), bytes, nccl::kUint8, settings_.comm, settings_.stream),
      "what ranks tell each other");
  ONEBIT_RETURN_IF_ERROR(wait("what ranks tell each other"));
  return copy_now(receive, gathered_.data(), all, cudaMemcpyDeviceToHost);
}

// ---- residuals ----

Status DeviceSide::add_unit(std::size_t count, bool whole) {
  if (communicator_ == nullptr) {
    nccl::CommunicatorOptions options;
    options.comm = settings_.comm;
    options.nccl = settings_.nccl;
    options.device = settings_.device;
    options.chunk = settings_.chunk;
    options.codec.parameters = {settings_.block,
                                settings_.scale_is_mean ? codec::Scale::kMean : codec::Scale::kRms};
    if (whole) options.codec.parameters = {codec::kWhole, codec::Scale::kRms};
    options.codec.ranks = settings_.ranks;
    options.codec.rank = settings_.rank;
    ONEBIT_ASSIGN_OR_RETURN(communicator_, nccl::NcclCommunicator::create(options));
  }
  auto residuals = communicator_->reserve(count);
  if (!residuals) {
    return Status::error(Code::kSystemError,
                         "CUDA device {} has no memory left for the residuals of {} elements",
                         settings_.device, count);
  }
  units_.push_back({count, std::move(*residuals)});
  return Status();
}

std::size_t DeviceSide::owned(const Unit& unit) const {
  return collective::PartitionPlan(unit.count, settings_.ranks, 1).partition(settings_.rank).length;
}

template <typename Each>
Status DeviceSide::for_partitions(const Unit& unit, Each each) const {
  const collective::PartitionPlan plan(unit.count, settings_.ranks, 1);
  for (std::size_t owner = 0; owner < settings_.ranks; ++owner) {
    const collective::Range range = plan.partition(owner);
    float* const errors = communicator_->worker_errors(unit.residuals, unit.count, owner);
    ONEBIT_RETURN_IF_ERROR(each(errors, range.begin, range.length));
  }
  return Status();
}

Status DeviceSide::read_residual(std::size_t unit, float* worker, float* owner) {
  const Unit& own = units_[unit];
  if (are_cleared_) {
    std::fill_n(worker, own.count, 0.0F);
    std::fill_n(owner, owned(own), 0.0F);
    return Status();
  }
  ONEBIT_RETURN_IF_ERROR(for_partitions(own, [&](const float* errors, std::size_t begin, std::size_t count) {
    return read(worker + begin, errors, count * sizeof(float));
  }));
  return read(owner, own.residuals.owner.data(), owned(own) * sizeof(float));
}

Status DeviceSide::write_residual(std::size_t unit, const float* worker, const float* owner) {
  const Unit& own = units_[unit];
  ONEBIT_RETURN_IF_ERROR(for_partitions(own, [&](float* errors, std::size_t begin, std::size_t count) {
    return write(errors, worker + begin, count * sizeof(float));
  }));
  return write(own.residuals.owner.data(), owner, owned(own) * sizeof(float));
}

void DeviceSide::clear_residuals() {
  if (!status_.ok()) {
    are_cleared_ = true;
    are_worthless_ = false;
    return;
  }
  for (const Unit& unit : units_) {
    zero(unit.residuals.worker.data(), unit.residuals.worker.bytes());
    zero(unit.residuals.owner.data(), unit.residuals.owner.bytes());
  }
  are_worthless_ = false;
}

std::size_t DeviceSide::residual_bytes() const {
  std::size_t bytes = 0;
  for (const Unit& unit : units_) bytes += unit.residuals.bytes();
  return bytes;
}

}  // namespace onebit::optimizer::cuda
