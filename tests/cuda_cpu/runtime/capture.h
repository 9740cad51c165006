// Stream capture: the operations of one or more streams as a list that a graph replays.
//
// The list is in the order of the calls, one legal order of the graph. Streams join by waiting for an event
// of a stream that is captured, and must be joined back. Threads: one at a time captures; the list does not
// change once the capture ended.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "cuda_cpu/runtime/stream.h"

namespace onebit::cuda_cpu {

class Capture {
 public:
  /// Begins one that starts from `origin`. Not on a legacy stream, nor on one that is captured.
  static cudaError_t begin(const StreamPointer& origin, cudaStreamCaptureMode mode);

  cudaError_t add(const StreamPointer& stream, Work work);
  /// `stream`, which it captures from now on, waits for what `from` had when it had `operations` operations.
  static void join(const std::shared_ptr<Capture>& capture, const StreamPointer& stream,
                   const StreamPointer& from, std::size_t operations);
  std::size_t operations_of(const StreamPointer& stream) const;
  /// A call that capture forbids makes the whole capture fail.
  void invalidate() { valid_ = false; }
  bool valid() const { return valid_; }
  /// Lets the streams go. Only from the origin; fails when invalid or when a stream was not joined back.
  cudaError_t end(const StreamPointer& stream);

  const std::vector<Work>& operations() const { return operations_; }

 private:
  struct Member {
    StreamPointer stream;
    std::size_t operations;
    bool joined_back;
  };
  explicit Capture(cudaStreamCaptureMode mode) : mode_(mode) {}
  std::vector<Member>::iterator member(const StreamPointer& stream);

  const cudaStreamCaptureMode mode_;
  std::vector<Work> operations_;
  std::vector<Member> members_;  ///< the first is the origin
  std::atomic<bool> valid_{true};
};

/// cudaErrorStreamCaptureUnsupported where a capture, of this thread or of any in global mode, forbids calls
/// that could wait for it (allocation, synchronisation); this thread's captures are invalid then.
cudaError_t refuse_in_capture();

}  // namespace onebit::cuda_cpu
