#include "collective/nccl/nccl_communicator.h"

#include "collective/nccl/device_guard.h"

namespace onebit::nccl {

NcclCommunicator::NcclCommunicator(const CommunicatorOptions& options)
    : options_(options), codec_(options.codec), slots_([this](std::size_t count, cudaStream_t stream) {
        return codec_.make_residuals(layout(count), stream);
      }) {}

onebit::Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::create(
    const CommunicatorOptions& options) {
  const DeviceGuard guard(options.device);
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(options));
  cudaError_t error = guard.error();
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&made->last_event_, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&made->own_stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return Status::error(Code::kSystemError, "CUDA device {}: {}", options.device, cudaGetErrorString(error));
  }
  const std::size_t bytes = sizeof(std::uint64_t) * kExchanged * options.codec.ranks;
  made->exchanged_ = DeviceMemory(options.codec.allocator, bytes);
  if (made->exchanged_.data() == nullptr) {
    return Status::error(Code::kSystemError, "CUDA device {} has no {} bytes of memory left", options.device,
                         bytes);
  }
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  const DeviceGuard guard(options_.device);
  if (last_event_ != nullptr) cudaEventDestroy(last_event_);
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
  // The memory goes back with this device current. cudaFree waits for what still uses it.
  exchanged_ = DeviceMemory();
  slots_ = ResidualSlots(nullptr);
  codec_.release();
}

Statistics NcclCommunicator::statistics() const {
  Statistics now = statistics_;
  now.residual_bytes = slots_.bytes();
  now.resets = slots_.resets();
  return now;
}

cudaError_t NcclCommunicator::enter(cudaStream_t stream) {
  // The handle of a thread's default stream is the same in all threads.
  const bool same = has_last_ && stream == last_stream_ && stream != cudaStreamPerThread;
  if (same || !has_last_) return cudaSuccess;
  return cudaStreamWaitEvent(stream, last_event_, 0);
}

cudaError_t NcclCommunicator::leave(cudaStream_t stream) {
  const cudaError_t error = cudaEventRecord(last_event_, stream);
  has_last_ = error == cudaSuccess;
  last_stream_ = stream;
  return error;
}

}  // namespace onebit::nccl
