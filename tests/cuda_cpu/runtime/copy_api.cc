// cudaMemcpy*, cudaMemset*.
//
// As on a GPU: a copy from pageable memory has read it when the call returns, a copy to pageable memory has
// ended by then, and all else runs later, in its stream.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda_cpu/runtime/capture.h"
#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/memory_table.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

bool is_pageable(const void* pointer) {
  return !MemoryTable::instance().find(pointer).has_value();
}

cudaError_t check(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  MemoryTable& memory = MemoryTable::instance();
  if (memory.accessible(to, bytes, to_device) && memory.accessible(from, bytes, from_device))
    return cudaSuccess;
  std::fprintf(stderr,
               "cuda_cpu: a copy of %zu bytes from %p to %p, kind %d: out of range, or another kind\n", bytes,
               from, to, static_cast<int>(kind));
  return cudaErrorInvalidValue;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 const StreamPointer& stream, bool may_return_early) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = check(to, from, bytes, kind); error != cudaSuccess) return error;
  const bool captured = stream->capture() != nullptr;
  const bool to_pageable = is_pageable(to);
  if (!captured && may_return_early && is_pageable(from) && !to_pageable) {
    const auto* const first = static_cast<const char*>(from);
    return enqueue(stream, [to, staged = std::vector<char>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  }
  OperationPointer operation;
  const cudaError_t error = enqueue(
      stream, [=] { std::memmove(to, from, bytes); }, &operation);
  if (error == cudaSuccess && (!may_return_early || to_pageable)) stream->wait(operation);
  return error;
}

StreamPointer stream_of(cudaStream_t handle) {
  return Devices::instance().stream(handle);
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return report(copy(to, from, bytes, kind, stream_of(handle), true));
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = refuse_in_capture(); error != cudaSuccess) return report(error);
  return report(copy(to, from, bytes, kind, stream_of(nullptr), false));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t handle) {
  return report(copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(handle), true));
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t handle) {
  if (width > to_pitch || width > from_pitch) return report(cudaErrorInvalidPitchValue);
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
             width, kind, stream_of(handle), true);
    if (error != cudaSuccess) return report(error);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  if (bytes > 0 && !MemoryTable::instance().accessible(to, bytes, true)) return report(cudaErrorInvalidValue);
  return report(enqueue(stream_of(handle), [=] { std::memset(to, value, bytes); }));
}
// Asynchronous to the host, as on a GPU.
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
