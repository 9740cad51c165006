// The devices with their streams, and the rules by which work gets into a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <set>
#include <unordered_map>
#include <vector>

#include "cuda_cpu/runtime/stream.h"

namespace onebit::cuda_cpu {

class Devices {
 public:
  static Devices& instance();
  int count() const { return static_cast<int>(devices_.size()); }
  bool valid(int device) const { return device >= 0 && device < count(); }

  StreamPointer create(int device, unsigned flags);
  /// The handle is gone at once, its work still runs.
  cudaError_t destroy(cudaStream_t handle);
  /// Null for a handle that is none. The default streams are those of the calling thread's device.
  StreamPointer stream(cudaStream_t handle);
  StreamPointer legacy(int device);
  /// All of the device, the legacy one included if it exists.
  std::vector<StreamPointer> streams(int device);
  /// What an operation in `stream` has to wait for: by the rules of the legacy stream.
  std::vector<StreamPointer> ordered_before(const Stream& stream);

 private:
  friend class PerThreadStreams;
  struct Device {
    StreamPointer legacy;
    std::set<StreamPointer> streams;  ///< those that are destroyed too, until their work is done
  };
  Devices();
  StreamPointer start(int device, unsigned flags);
  void retire(const StreamPointer& stream);

  Mutex mutex_;
  std::vector<Device> devices_;
  std::unordered_map<cudaStream_t, StreamPointer> by_handle_;
};

/// Enqueues `work`, behind what the legacy stream's rules demand, or adds it to the stream's capture.
/// `operation`, if not null, gets what to wait for; it stays null in a capture.
cudaError_t enqueue(const StreamPointer& stream, Work work, OperationPointer* operation = nullptr);
/// The same for work that does not touch device memory, so that CUDA_CPU_PROTECT sees through long waits.
cudaError_t enqueue_wait(const StreamPointer& stream, Work work);
/// Waits for all work of the stream, or of all streams of the device.
cudaError_t synchronize(const StreamPointer& stream);
cudaError_t synchronize_device(int device);

}  // namespace onebit::cuda_cpu
