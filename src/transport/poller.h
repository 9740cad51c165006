// One epoll set, edge-triggered, and the list of the files in it that still have work.
//
// An edge is reported once, so a Source keeps what it was told in its flags and stays in the ready list until
// it has acted on them. Invariant: a Source in the ready list is alive (its destructor takes it out).
// Threads: one, except wake().
#pragma once

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"

namespace onebit::transport {

class Poller;

/// Something with a file in the epoll set.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  /// Acts on the flags below, as far as fairness allows; enqueues itself again if more is to be done. May
  /// destroy the Source.
  virtual void on_ready() = 0;

  bool readable = false;
  bool writable = false;
  bool wants_reports = false;  ///< set by the Source: errors of its file may be reports, which it reads
  bool has_reports = false;
  bool hung_up = false;  ///< the peer has closed or the connection is broken; data may still be there

 protected:
  virtual ~Source();

 private:
  friend class Poller;
  Poller* queued_in_ = nullptr;
  Source* previous_ = nullptr;
  Source* next_ = nullptr;
};

class Poller {
 public:
  Poller() = default;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  ~Poller();

  Status open();
  int fd() const noexcept { return epoll_.get(); }

  Status add(int fd, Source& source);
  void remove(int fd) noexcept;
  void enqueue(Source& source) noexcept;
  bool has_ready() const noexcept { return first_ != nullptr; }

  enum class Wait { kNothing, kEvents, kWoken };
  /// Waits up to `timeout_ms` (-1: no limit) for events and enqueues their sources. Returns early on EINTR,
  /// with kNothing.
  Result<Wait> wait(int timeout_ms);
  /// Calls on_ready of those in the list at the start of the call, once each.
  void run_ready();

  /// Makes a wait return kWoken. Any thread, async-signal-safe.
  void wake() noexcept;
  /// From now on the caller may wait on fd() itself: it must be readable while there is work, also such that
  /// comes up outside of progress(), and without an event of a socket.
  void watch() noexcept;
  bool watched() const noexcept { return watched_; }
  void enter() noexcept { inside_ = true; }
  void leave() noexcept;
  void announce() noexcept {
    if (watched_ && !inside_) signal_ready();
  }

 private:
  void unlink(Source& source) noexcept;
  void signal_ready() noexcept;
  bool read_wakes() noexcept;
  friend class Source;

  UniqueFd epoll_;
  UniqueFd event_;
  Source* first_ = nullptr;
  Source* last_ = nullptr;
  Source* end_of_round_ = nullptr;  ///< the last one of this round
  std::uint64_t own_signals_ = 0;
  bool watched_ = false;
  bool inside_ = false;
  std::array<epoll_event, 64> events_{};
};

}  // namespace onebit::transport
