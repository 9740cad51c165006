// A stream: a thread that runs its operations in order. Nothing else orders work, so a wait that a program
// leaves out is missing here too, and the thread sanitizer sees it.
//
// Invariant: an operation's `before` edge comes from the thread that enqueued it, its `after` edge goes to
// whoever waits for it; each operation has its own pair, so that no edge is wider than what CUDA promises.
// The worker lives until the stream is retired and its queue is empty. Any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "cuda_cpu/runtime/waiting.h"

namespace onebit::cuda_cpu {

using Work = std::function<void()>;

struct Operation {
  Work work;
  std::atomic<bool> done{false};
  char before = 0;
  char after = 0;
};
using OperationPointer = std::shared_ptr<Operation>;

class Capture;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// `legacy`: the device's default stream, which the others wait for and which waits for them.
  static std::shared_ptr<Stream> start(int device, unsigned flags, bool legacy);

  int device() const { return device_; }
  unsigned flags() const { return flags_; }
  bool legacy() const { return legacy_; }

  /// Puts `work` at the end. Moved, not copied: the host must not be the last to drop what it holds.
  OperationPointer append(Work work);
  /// The last operation, null when there has been none.
  OperationPointer last();
  /// Until `operation` of this stream has run; null needs no wait.
  void wait(const OperationPointer& operation);
  /// The worker ends, and `after_last` is called by it, when all is done that is in the queue.
  void retire(Work after_last);

  std::shared_ptr<Capture> capture();
  void set_capture(std::shared_ptr<Capture> capture);

 private:
  Stream(int device, unsigned flags, bool legacy) : device_(device), flags_(flags), legacy_(legacy) {}
  void run();
  /// The worker's next operation, null when it may end.
  OperationPointer next();
  void finish(OperationPointer operation);

  const int device_;
  const unsigned flags_;
  const bool legacy_;
  Mutex mutex_;
  Gate gate_;
  std::deque<OperationPointer> queue_;
  OperationPointer last_;
  bool retired_ = false;
  Work after_last_;
  std::shared_ptr<Capture> capture_;
};
using StreamPointer = std::shared_ptr<Stream>;

}  // namespace onebit::cuda_cpu
