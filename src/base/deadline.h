// A point in time by which a wait must end. Value type.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>

namespace onebit {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline after(Clock::duration span) { return Deadline(Clock::now() + span); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  explicit Deadline(Clock::time_point when) : when_(when) {}

  bool passed() const { return Clock::now() >= when_; }
  /// For poll and epoll_wait: whole milliseconds left, rounded up; 0 when passed; -1 when there is no limit.
  int poll_timeout() const {
    if (when_ == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
  }
  Deadline earlier(Deadline other) const { return Deadline(std::min(when_, other.when_)); }

 private:
  Clock::time_point when_;
};

}  // namespace onebit
