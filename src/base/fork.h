// What must happen around fork() in a process that has threads: locks that the child can take, and actions in
// the child.
//
// A child has only the thread that forked. A lock that another thread held at that moment would be held in
// the child for ever, so the locks of process-wide tables are ForkMutexes: fork() waits until it has them
// all, in the order of their levels, and lets them go again in parent and child. Children made without the
// handlers of fork (clone, vfork) are for exec only. Threads: any.
#pragma once

#include <mutex>

namespace onebit {

/// Who holds a lock may take those of higher levels, and no other.
enum class LockLevel { kTable = 0, kSockets = 1, kLog = 2 };

/// A mutex that no forked child inherits locked. Lives as long as the process. Make it when the library is
/// loaded (an object at namespace scope that refers to its table): a fork in another thread must not meet it
/// half made.
class ForkMutex {
 public:
  explicit ForkMutex(LockLevel level);
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Has `action` called in every forked child, while it holds all ForkMutexes. It may do only what is safe
/// between fork and exec in a process that had threads.
void in_forked_children(void (*action)());

}  // namespace onebit
