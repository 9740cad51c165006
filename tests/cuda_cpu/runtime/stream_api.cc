// cudaStream*, host functions, capture and graphs.
#include <cuda_runtime_api.h>

#include <memory>

#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/capture.h"
#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

StreamPointer stream_of(cudaStream_t handle) {
  return Devices::instance().stream(handle);
}

/// What a cudaGraph_t and a cudaGraphExec_t point to.
struct Graph {
  std::shared_ptr<const Capture> capture;
};

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  if (handle == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
    return report(cudaErrorInvalidValue);
  }
  if (!Devices::instance().valid(thread_state().device)) return report(cudaErrorNoDevice);
  *handle = reinterpret_cast<cudaStream_t>(Devices::instance().create(thread_state().device, flags).get());
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return report(Devices::instance().destroy(handle));
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return report(synchronize(stream_of(handle)));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const Unobserved quiet;
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (const auto capture = stream->capture()) {
    capture->invalidate();
    return report(cudaErrorStreamCaptureUnsupported);
  }
  const OperationPointer last = stream->last();
  if (last == nullptr) return cudaSuccess;
  if (!last->done) return cudaErrorNotReady;
  acquire(&last->after);
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  *flags = stream->flags();
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  if (stream_of(handle) == nullptr) return report(cudaErrorInvalidResourceHandle);
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  *device = stream->device();
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  *id = reinterpret_cast<std::uintptr_t>(stream.get());
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return report(enqueue(stream_of(handle), [function, data] {
    thread_state().in_host_function = true;
    function(data);
    thread_state().in_host_function = false;
  }));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Unobserved quiet;
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  return report(Capture::begin(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const Unobserved quiet;
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr || graph == nullptr) return report(cudaErrorInvalidValue);
  *graph = nullptr;
  const auto capture = stream->capture();
  if (capture == nullptr) return report(cudaErrorIllegalState);
  if (const cudaError_t error = capture->end(stream); error != cudaSuccess) return report(error);
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{capture});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const StreamPointer stream = stream_of(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  const auto capture = stream->capture();
  *status = capture == nullptr  ? cudaStreamCaptureStatusNone
            : !capture->valid() ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_state().capture_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const Unobserved quiet;
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return report(enqueue(stream_of(handle), [capture = reinterpret_cast<Graph*>(executable)->capture] {
    for (const Work& work : capture->operations()) work();
  }));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Unobserved quiet;
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Unobserved quiet;
  delete reinterpret_cast<Graph*>(executable);
  return cudaSuccess;
}

}  // extern "C"
