// Events: each cudaEventRecord makes a new recording, and waits are for the one that was current when they
// were called.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/capture.h"
#include "cuda_cpu/runtime/waiting.h"

namespace onebit::cuda_cpu {

/// Any thread.
class Recording {
 public:
  void complete(double seconds) {
    seconds_ = seconds;
    release(&edge_);
    done_ = true;
    gate_.notify();
  }
  void wait() {
    gate_.wait([this] { return done_.load(); });
    acquire(&edge_);
  }
  /// Without waiting.
  bool done() {
    if (!done_) return false;
    acquire(&edge_);
    return true;
  }
  double seconds() const { return seconds_; }

  // Set before it is shared, when it was recorded in a capture.
  std::shared_ptr<Capture> capture;
  StreamPointer stream;
  std::size_t operations = 0;

 private:
  std::atomic<bool> done_{false};
  Gate gate_;
  double seconds_ = 0;
  char edge_ = 0;
};

class Event {
 public:
  Event(unsigned flags, int device) : flags_(flags), device_(device) {}
  unsigned flags() const { return flags_; }
  int device() const { return device_; }
  void record(std::shared_ptr<Recording> recording) {
    const std::lock_guard lock(mutex_);
    recording_ = std::move(recording);
  }
  /// Null when it was never recorded.
  std::shared_ptr<Recording> recording() {
    const std::lock_guard lock(mutex_);
    return recording_;
  }

 private:
  const unsigned flags_;
  const int device_;
  Mutex mutex_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace onebit::cuda_cpu
