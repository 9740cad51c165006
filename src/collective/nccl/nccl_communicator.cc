#include "collective/nccl/nccl_communicator.h"

#include <algorithm>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/levels.h"
#include "collective/nccl/nccl_wire.h"

namespace onebit::nccl {

namespace {

/// Calls of a batch at most: those of a launch's pieces with one rank; more have no gain.
constexpr std::size_t kMostCalls = 48;

CodecOptions with_stream(CodecOptions options, cudaStream_t stream) {
  options.memory.stream = stream;
  return options;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const CommunicatorOptions& options, cudaStream_t own_stream)
    : options_(options),
      own_stream_(own_stream),
      codec_(with_stream(options.codec, own_stream)),
      wire_(std::make_unique<NcclWire>(options_.nccl, options_.comm, options_.device, options_.codec.ranks,
                                       options_.codec.rank)),
      slots_([this](Shape shape) { return codec_.make_residuals(layout(shape)); }) {}

onebit::Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::create(
    const CommunicatorOptions& options) {
  const DeviceGuard guard(options.device);
  cudaStream_t stream = nullptr;
  cudaError_t error = guard.error();
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(options, stream));
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&made->last_event_, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&made->join_event_, cudaEventDisableTiming);
  if (error == cudaSuccess) error = static_cast<NcclWire&>(*made->wire_).open();
  const std::size_t bytes = sizeof(std::uint64_t) * kExchanged * options.codec.ranks;
  if (error == cudaSuccess) {
    made->exchanged_ = DeviceMemory({options.codec.memory.allocator, stream}, bytes);
    error = cudaStreamSynchronize(stream);
  }
  if (error != cudaSuccess) {
    return Status::error(Code::kSystemError, "CUDA device {}: {}", options.device, cudaGetErrorString(error));
  }
  if (made->exchanged_.data() == nullptr) {
    return Status::error(Code::kSystemError, "CUDA device {} has no {} bytes of memory left", options.device,
                         bytes);
  }
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  close();
  const DeviceGuard guard(options_.device);
  // The memory goes back with this device current, behind what uses it on the stream; nothing waits.
  wire_.reset();  // what it moves is over then
  exchanged_ = DeviceMemory();
  slots_ = ResidualSlots(nullptr);
  codec_.release();
  for (const cudaEvent_t event : {last_event_, join_event_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
}

std::optional<Residuals> NcclCommunicator::reserve(Shape shape) {
  const DeviceGuard guard(options_.device);
  const Layout whole = layout(shape);
  if (guard.error() != cudaSuccess || !codec_.reserve(whole) || !wire_->reserve(whole.staging_bytes())) {
    return std::nullopt;
  }
  std::optional<Residuals> made = codec_.make_residuals(whole);
  if (made) admitted_[shape] = true;
  return made;
}

void NcclCommunicator::abort() {
  is_aborted_.store(true);
  wire_->abort(Status(Code::kAborted, "the communicator was aborted"));
  if (levels_ != nullptr) levels_->abort();
}

void NcclCommunicator::set_levels(std::unique_ptr<Levels> levels) {
  levels_ = std::move(levels);
}

void NcclCommunicator::set_wire(std::unique_ptr<Wire> wire) {
  wire_ = std::move(wire);
}

Status NcclCommunicator::status() const {
  return levels_ != nullptr ? levels_->compressed().status() : wire_->status();
}

void NcclCommunicator::leave() {
  if (levels_ != nullptr) levels_->compressed().leave();
  wire_->leave();
}

void NcclCommunicator::close() {
  levels_.reset();
}

Statistics NcclCommunicator::statistics() const {
  Statistics now = statistics_;
  now.sent_bytes = wire_->sent_bytes();
  now.residual_bytes = slots_.bytes();
  now.resets = slots_.resets();
  if (levels_ != nullptr) {
    const Statistics between = levels_->compressed().statistics();
    now.calls += between.calls;
    now.batches += between.batches;
    now.bytes += between.bytes;
    now.sent_bytes += between.sent_bytes;
    now.residual_bytes += between.residual_bytes;
    now.resets += between.resets;
  }
  return now;
}

cudaError_t NcclCommunicator::enter(cudaStream_t stream) {
  // The handle of a thread's default stream is the same in all threads.
  const bool same = has_last_ && stream == last_stream_ && stream != cudaStreamPerThread;
  if (same || !has_last_) return cudaSuccess;
  return cudaStreamWaitEvent(stream, last_event_, 0);
}

cudaError_t NcclCommunicator::join(cudaStream_t stream, cudaStream_t other) {
  const cudaError_t error = cudaEventRecord(join_event_, other);
  return error != cudaSuccess ? error : cudaStreamWaitEvent(stream, join_event_, 0);
}

std::size_t NcclCommunicator::first_batch(std::span<Request* const> requests,
                                          std::size_t most_staging) const {
  const Request& first = *requests.front();
  const auto fits = [&](const Request& request, std::size_t staging) {
    return request.type == first.type && request.op == first.op &&
           request.shape.scatters == first.shape.scatters && staging <= most_staging &&
           layout(request.shape).plan().chunks() == 1 && options_.codec.parameters.block != codec::kWhole;
  };
  std::size_t staging = 0;
  std::size_t size = 0;
  while (size < requests.size() && size < kMostCalls) {
    staging += layout(requests[size]->shape).staging_bytes();
    if (!fits(*requests[size], staging)) break;
    ++size;
  }
  return std::max<std::size_t>(size, 1);
}

cudaError_t NcclCommunicator::leave(cudaStream_t stream) {
  cudaError_t error = cudaEventRecord(last_event_, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(own_stream_, last_event_, 0);
  has_last_ = error == cudaSuccess;
  last_stream_ = stream;
  return error;
}

}  // namespace onebit::nccl
