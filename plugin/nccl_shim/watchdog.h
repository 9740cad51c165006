// Aborts communicators that have not met within a time.
//
// NCCL waits for ever for a rank that does not come, in its calls and on streams; only an abort from another
// thread ends that. Lives on the stack of who waits; has a thread of its own meanwhile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace onebit::shim {

class Watchdog {
 public:
  /// Calls `abort` from its thread if it still lives then.
  Watchdog(std::chrono::milliseconds patience, std::function<void()> abort)
      : thread_([this, patience, abort = std::move(abort)] {
          std::unique_lock lock(mutex_);
          if (woken_.wait_for(lock, patience, [this] { return is_over_; })) return;
          has_aborted_ = true;
          abort();
        }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() { dismiss(); }

  /// The wait is over. True if it was ended by an abort.
  bool dismiss() {
    if (!thread_.joinable()) return has_aborted_;
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    woken_.notify_one();
    thread_.join();
    return has_aborted_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  bool is_over_ = false;
  bool has_aborted_ = false;
  std::thread thread_;  ///< last: it uses what is above
};

}  // namespace onebit::shim
