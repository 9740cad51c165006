// cudaMalloc*, cudaFree*, cudaHost*, memory pools, pointer attributes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/runtime/capture.h"
#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/memory_table.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

constexpr int kFreshInStream = 0xCB;  // not what cudaMalloc fills with, so that a dump tells them apart

MemoryTable& memory() {
  return MemoryTable::instance();
}

cudaError_t refuse_here() {
  if (thread_state().in_host_function) return cudaErrorNotPermitted;
  if (!Devices::instance().valid(thread_state().device)) return cudaErrorNoDevice;
  return refuse_in_capture();
}
cudaError_t allocate(void** pointer, std::size_t bytes, cudaMemoryType type) {
  if (const cudaError_t error = refuse_here(); error != cudaSuccess) return error;
  return memory().allocate(pointer, bytes, type, thread_state().device);
}
/// cudaFree waits for the device: work that still uses the memory must not lose it.
cudaError_t wait_and_release(void* pointer, cudaMemoryType type) {
  if (pointer == nullptr) return cudaSuccess;
  const auto allocation = memory().find(pointer);
  if (!allocation) return cudaErrorInvalidValue;
  if (const cudaError_t error = synchronize_device(allocation->device); error != cudaSuccess) return error;
  return memory().release(pointer, type);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return report(allocate(pointer, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* pointer) {
  return report(wait_and_release(pointer, cudaMemoryTypeDevice));
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return report(allocate(pointer, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}
cudaError_t cudaFreeHost(void* pointer) {
  return report(wait_and_release(pointer, cudaMemoryTypeHost));
}
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  return report(allocate(pointer, bytes, cudaMemoryTypeManaged));
}
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  return report(memory().register_host(pointer, bytes, thread_state().device));
}
cudaError_t cudaHostUnregister(void* pointer) {
  return report(memory().unregister_host(pointer));
}
cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  const auto allocation = memory().find(pointer);
  if (!allocation || allocation->type != cudaMemoryTypeHost) return report(cudaErrorInvalidValue);
  *device_pointer = pointer;
  return cudaSuccess;
}

// The memory exists at once; it is filled at its place in the stream, so that earlier use shows.
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t handle) {
  const StreamPointer stream = Devices::instance().stream(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture() != nullptr) return report(cudaErrorStreamCaptureUnsupported);
  if (thread_state().in_host_function) return report(cudaErrorNotPermitted);
  const cudaError_t error = memory().allocate(pointer, bytes, cudaMemoryTypeDevice, stream->device());
  if (error != cudaSuccess || *pointer == nullptr) return report(error);
  return report(enqueue(stream, [fresh = *pointer, bytes] { std::memset(fresh, kFreshInStream, bytes); }));
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  const StreamPointer stream = Devices::instance().stream(handle);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture() != nullptr) return report(cudaErrorStreamCaptureUnsupported);
  if (pointer == nullptr) return cudaSuccess;
  const auto allocation = memory().find(pointer);
  if (!allocation || allocation->type != cudaMemoryTypeDevice) return report(cudaErrorInvalidValue);
  return report(enqueue(stream, [pointer] { memory().release(pointer, cudaMemoryTypeDevice); }));
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!Devices::instance().valid(device)) return report(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<std::uintptr_t>(device) + 1);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
  return report(pool == nullptr || value == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  return report(pool == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = runtime_options().device_memory;
  *free = *total - memory().used(thread_state().device);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  constexpr int kNoDevice = -2;  // as the real one says
  std::memset(attributes, 0, sizeof *attributes);
  const auto allocation = memory().find(pointer);
  attributes->type = allocation ? allocation->type : cudaMemoryTypeUnregistered;
  attributes->device = allocation ? allocation->device : kNoDevice;
  if (allocation) attributes->devicePointer = const_cast<void*>(pointer);
  if (!allocation || allocation->type != cudaMemoryTypeDevice)
    attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

}  // extern "C"
