// cudaEvent*, cudaStreamWaitEvent.
#include "cuda_cpu/runtime/event.h"

#include <cuda_runtime_api.h>

#include <chrono>

#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

Event* event_of(cudaEvent_t handle) {
  return reinterpret_cast<Event*>(handle);
}
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Unobserved quiet;
  constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (event == nullptr || (flags & ~kKnown) != 0) return report(cudaErrorInvalidValue);
  *event = reinterpret_cast<cudaEvent_t>(new Event(flags, thread_state().device));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Unobserved quiet;
  if (event == nullptr) return report(cudaErrorInvalidResourceHandle);
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
  const Unobserved quiet;
  const StreamPointer stream = Devices::instance().stream(handle);
  if (event == nullptr || stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (event_of(event)->device() != stream->device()) return report(cudaErrorInvalidResourceHandle);
  auto recording = std::make_shared<Recording>();
  recording->capture = stream->capture();
  if (recording->capture != nullptr) {
    recording->stream = stream;
    recording->operations = recording->capture->operations_of(stream);
    event_of(event)->record(recording);
    return cudaSuccess;
  }
  event_of(event)->record(recording);
  return report(enqueue_wait(stream, [recording] { recording->complete(now()); }));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Unobserved quiet;
  const StreamPointer stream = Devices::instance().stream(handle);
  if (event == nullptr || stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  const auto recording = event_of(event)->recording();
  if (recording == nullptr) return cudaSuccess;
  const auto capture = stream->capture();
  if (recording->capture != nullptr) {
    if (capture != nullptr && capture != recording->capture) return report(cudaErrorStreamCaptureMerge);
    if (stream->legacy()) return report(cudaErrorStreamCaptureImplicit);
    Capture::join(recording->capture, stream, recording->stream, recording->operations);
    return cudaSuccess;
  }
  if (capture != nullptr) return report(cudaErrorStreamCaptureIsolation);
  return report(enqueue_wait(stream, [recording] { recording->wait(); }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Unobserved quiet;
  if (event == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (thread_state().in_host_function) return report(cudaErrorNotPermitted);
  const auto recording = event_of(event)->recording();
  if (recording == nullptr) return cudaSuccess;
  if (recording->capture != nullptr) return report(cudaErrorCapturedEvent);
  recording->wait();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Unobserved quiet;
  if (event == nullptr) return report(cudaErrorInvalidResourceHandle);
  const auto recording = event_of(event)->recording();
  if (recording == nullptr) return cudaSuccess;
  if (recording->capture != nullptr) return report(cudaErrorCapturedEvent);
  return recording->done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (start == nullptr || end == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (milliseconds == nullptr) return report(cudaErrorInvalidValue);
  const auto first = event_of(start)->recording();
  const auto last = event_of(end)->recording();
  const bool timed = ((event_of(start)->flags() | event_of(end)->flags()) & cudaEventDisableTiming) == 0;
  if (first == nullptr || last == nullptr || !timed) return report(cudaErrorInvalidResourceHandle);
  if (!first->done() || !last->done()) return report(cudaErrorNotReady);
  *milliseconds = static_cast<float>((last->seconds() - first->seconds()) * 1e3);
  return cudaSuccess;
}

}  // extern "C"
