#include "cuda_cpu/runtime/devices.h"

#include <map>
#include <utility>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/capture.h"
#include "cuda_cpu/runtime/memory_table.h"
#include "cuda_cpu/runtime/thread_state.h"

namespace onebit::cuda_cpu {

/// The cudaStreamPerThread of each device, retired when their thread ends.
class PerThreadStreams {
 public:
  ~PerThreadStreams() {
    for (const auto& [device, stream] : of_device_) Devices::instance().retire(stream);
  }
  StreamPointer of(int device) {
    StreamPointer& stream = of_device_[device];
    if (stream == nullptr) stream = Devices::instance().start(device, cudaStreamDefault);
    return stream;
  }

 private:
  std::map<int, StreamPointer> of_device_;
};

namespace {

bool is_blocking(const Stream& stream) {
  return (stream.flags() & cudaStreamNonBlocking) == 0;
}

cudaError_t enqueue_bare(const StreamPointer& stream, Work work, OperationPointer* operation) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (thread_state().in_host_function) return cudaErrorNotPermitted;
  const Unobserved quiet;
  if (const auto capture = stream->capture()) return capture->add(stream, std::move(work));
  const std::vector<StreamPointer> before = Devices::instance().ordered_before(*stream);
  for (const StreamPointer& other : before) {
    const auto capture = other->capture();
    if (capture == nullptr) continue;
    capture->invalidate();
    return cudaErrorStreamCaptureImplicit;
  }
  for (const StreamPointer& other : before) {
    const OperationPointer last = other->last();
    // A finished one needs no wait, but the sanitizer has to hear of the order.
    if (last != nullptr && (!last->done || under_thread_sanitizer())) {
      stream->append([other, last] { other->wait(last); });
    }
  }
  OperationPointer appended = stream->append(std::move(work));
  if (operation != nullptr) *operation = std::move(appended);
  return cudaSuccess;
}

}  // namespace

ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

Devices::Devices() : devices_(static_cast<std::size_t>(runtime_options().devices)) {}

// Never destroyed: streams may still run when the program's statics go.
Devices& Devices::instance() {
  static Devices* const devices = new Devices;
  return *devices;
}

StreamPointer Devices::start(int device, unsigned flags) {
  const Unobserved quiet;
  StreamPointer stream = Stream::start(device, flags, false);
  const std::lock_guard lock(mutex_);
  devices_[static_cast<std::size_t>(device)].streams.insert(stream);
  return stream;
}

void Devices::retire(const StreamPointer& stream) {
  const Unobserved quiet;
  stream->retire([this, raw = stream.get()] {
    const Unobserved erasing;
    const std::lock_guard lock(mutex_);
    devices_[static_cast<std::size_t>(raw->device())].streams.erase(raw->shared_from_this());
  });
}

StreamPointer Devices::create(int device, unsigned flags) {
  const Unobserved quiet;
  StreamPointer stream = start(device, flags);
  const std::lock_guard lock(mutex_);
  by_handle_[reinterpret_cast<cudaStream_t>(stream.get())] = stream;
  return stream;
}

cudaError_t Devices::destroy(cudaStream_t handle) {
  const Unobserved quiet;
  StreamPointer stream;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end()) return cudaErrorInvalidResourceHandle;
    stream = found->second;
    by_handle_.erase(found);
  }
  retire(stream);
  return cudaSuccess;
}

StreamPointer Devices::legacy(int device) {
  const std::lock_guard lock(mutex_);
  StreamPointer& stream = devices_[static_cast<std::size_t>(device)].legacy;
  if (stream == nullptr) stream = Stream::start(device, cudaStreamDefault, true);
  return stream;
}

StreamPointer Devices::stream(cudaStream_t handle) {
  const int device = thread_state().device;
  if (!valid(device)) return nullptr;
  if (handle == nullptr || handle == cudaStreamLegacy) return legacy(device);
  if (handle == cudaStreamPerThread) {
    static thread_local PerThreadStreams own;
    return own.of(device);
  }
  const std::lock_guard lock(mutex_);
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : found->second;
}

std::vector<StreamPointer> Devices::streams(int device) {
  const std::lock_guard lock(mutex_);
  const Device& here = devices_[static_cast<std::size_t>(device)];
  std::vector<StreamPointer> all(here.streams.begin(), here.streams.end());
  if (here.legacy != nullptr) all.push_back(here.legacy);
  return all;
}

std::vector<StreamPointer> Devices::ordered_before(const Stream& stream) {
  std::vector<StreamPointer> before;
  if (!is_blocking(stream)) return before;
  const std::lock_guard lock(mutex_);
  const Device& here = devices_[static_cast<std::size_t>(stream.device())];
  if (!stream.legacy()) {
    if (here.legacy != nullptr) before.push_back(here.legacy);
    return before;
  }
  for (const StreamPointer& other : here.streams) {
    if (is_blocking(*other)) before.push_back(other);
  }
  return before;
}

cudaError_t enqueue_wait(const StreamPointer& stream, Work work) {
  return enqueue_bare(stream, std::move(work), nullptr);
}

cudaError_t enqueue(const StreamPointer& stream, Work work, OperationPointer* operation) {
  return enqueue_bare(
      stream,
      [work = std::move(work)] {
        const DeviceAccess access;
        work();
      },
      operation);
}

cudaError_t synchronize(const StreamPointer& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (thread_state().in_host_function) return cudaErrorNotPermitted;
  if (const auto capture = stream->capture()) {
    capture->invalidate();
    return cudaErrorStreamCaptureUnsupported;
  }
  stream->wait(stream->last());
  return cudaSuccess;
}

cudaError_t synchronize_device(int device) {
  if (!Devices::instance().valid(device)) return cudaErrorNoDevice;
  if (const cudaError_t error = refuse_in_capture(); error != cudaSuccess) return error;
  for (const StreamPointer& stream : Devices::instance().streams(device)) {
    if (const cudaError_t error = synchronize(stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace onebit::cuda_cpu
