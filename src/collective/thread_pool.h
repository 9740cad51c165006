// The compute threads of a communicator: tasks in, finished tasks out to the thread that moves data.
//
// Tasks have one of three urgencies; the most urgent runs first, in order of submission. Invariant: every
// submitted task runs exactly once and is then in the list that take_finished returns, unless the pool is
// destroyed before. Threads: submit and take_finished from the owning thread only. The threads block all
// signals.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace onebit::collective {

enum class Urgency : std::uint8_t { kHigh = 0, kNormal = 1, kLow = 2 };

class Task {
 public:
  virtual ~Task() = default;
  virtual void run() noexcept = 0;
};

class ThreadPool {
 public:
  /// `notify` is called by compute threads when finished tasks wait; it must be thread-safe and cheap.
  static Result<std::unique_ptr<ThreadPool>> create(unsigned threads, std::function<void()> notify);
  ~ThreadPool();

  void submit(Task& task, Urgency urgency);
  /// Appends the tasks that have finished since the last call.
  void take_finished(std::vector<Task*>& finished);
  /// Waits until no task is queued or running; finished ones can then be taken.
  void drain();
  unsigned threads() const noexcept { return static_cast<unsigned>(threads_.size()); }

 private:
  explicit ThreadPool(std::function<void()> notify) : notify_(std::move(notify)) {}
  void work();

  std::function<void()> notify_;
  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable idle_;
  std::array<std::deque<Task*>, 3> queues_;
  std::vector<Task*> finished_;
  unsigned running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace onebit::collective
