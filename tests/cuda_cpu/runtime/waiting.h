// Locks and waits of the stand-in, on futexes.
//
// Not the standard library's: the thread sanitizer intercepts those, and would see an order between a
// stream's worker and the host at each enqueue, where CUDA promises none. Any thread.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace onebit::cuda_cpu {

inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t while_value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, while_value, nullptr, nullptr, 0);
}
inline void futex_wake(std::atomic<std::uint32_t>& word, int threads) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

/// For std::lock_guard.
class Mutex {
 public:
  void lock() {
    std::uint32_t seen = kFree;
    if (state_.compare_exchange_strong(seen, kHeld)) return;
    if (seen != kAwaited) seen = state_.exchange(kAwaited);
    while (seen != kFree) {
      futex_wait(state_, kAwaited);
      seen = state_.exchange(kAwaited);
    }
  }
  void unlock() {
    if (state_.exchange(kFree) == kAwaited) futex_wake(state_, 1);
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kAwaited = 2;
  std::atomic<std::uint32_t> state_{kFree};
};

/// Where threads wait until something holds that another makes true and announces.
class Gate {
 public:
  void notify() {
    generation_.fetch_add(1);
    futex_wake(generation_, INT_MAX);
  }
  template <typename Predicate>
  void wait(Predicate holds) {
    constexpr int kSpins = 50;
    for (int i = 0;; ++i) {
      const std::uint32_t generation = generation_.load();
      if (holds()) return;
      if (i > kSpins) futex_wait(generation_, generation);
    }
  }

 private:
  std::atomic<std::uint32_t> generation_{0};
};

}  // namespace onebit::cuda_cpu
