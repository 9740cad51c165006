#include "collective/nccl/nccl_wire.h"

#include "collective/nccl/failures.h"

namespace onebit::nccl {

NcclWire::~NcclWire() {
  for (const cudaEvent_t event : ends_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (start_ != nullptr) cudaEventDestroy(start_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaError_t NcclWire::open() {
  cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&start_, cudaEventDisableTiming);
  for (cudaEvent_t& event : ends_) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  return error;
}

Result NcclWire::begin(const Step& step, cudaStream_t stream) {
  if (!step.overlaps) return kSuccess;
  cudaError_t error = cudaEventRecord(start_, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_, start_, 0);
  return error == cudaSuccess ? kSuccess : failed(error, "beginning to exchange", device_);
}

Result NcclWire::exchange_pieces(const Step& step, cudaStream_t stream) {
  for (unsigned peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const int number = static_cast<int>(peer);
    const auto out = step.out(peer);
    const auto in = step.in(peer);
    Result result = kSuccess;
    if (!out.empty()) result = nccl_.send(out.data(), out.size(), kUint8, number, comm_, stream);
    if (result == kSuccess && !in.empty())
      result = nccl_.receive(in.data(), in.size(), kUint8, number, comm_, stream);
    if (result != kSuccess) return result;
    sent_bytes_ += out.size();
  }
  return kSuccess;
}

Result NcclWire::move(const Step& step, cudaStream_t stream) {
  const cudaStream_t own = step.overlaps ? stream_ : stream;
  if (step.phase == Phase::kPieces) return exchange_pieces(step, own);
  const std::size_t stride = DeviceCodec::stride(step.calls, step.chunk);
  std::byte* const all = step.codec.averaged(step.calls, step.chunk, 0).data();
  sent_bytes_ += (ranks_ - 1) * stride;
  return nccl_.all_gather(all + rank_ * stride, all, stride, kUint8, comm_, own);
}

Result NcclWire::begun(const Step& step) {
  if (!step.overlaps) return kSuccess;
  const cudaError_t error = cudaEventRecord(ends_[step.place()], stream_);
  return error == cudaSuccess ? kSuccess : failed(error, "exchanging", device_);
}

Result NcclWire::await(const Step& step, cudaStream_t stream) {
  if (!step.overlaps) return kSuccess;
  const cudaError_t error = cudaStreamWaitEvent(stream, ends_[step.place()], 0);
  return error == cudaSuccess ? kSuccess : failed(error, "waiting for what ranks exchange", device_);
}

}  // namespace onebit::nccl
