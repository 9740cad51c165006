// The compute threads of a communicator: tasks in, finished tasks out to the thread that moves data.
//
// Tasks have one of three urgencies; the most urgent runs first, in order of submission. Invariant: every
// submitted task runs exactly once and is then in the list that take_finished returns, unless the pool is
// destroyed before. Tasks are linked to each other: submitting allocates nothing. Threads: submit and
// take_finished from the owning thread only. The threads block all signals.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
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

 private:
  friend class TaskList;
  Task* next_ = nullptr;  ///< in the pool's list that holds it
};

/// Tasks in order, linked; a task is in one list at most.
class TaskList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  void push_back(Task& task) noexcept {
    task.next_ = nullptr;
    (empty() ? first_ : last_->next_) = &task;
    last_ = &task;
  }
  /// The first, which leaves the list. Not of an empty one.
  Task* pop_front() noexcept {
    Task* const task = first_;
    first_ = task->next_;
    return task;
  }

 private:
  Task* first_ = nullptr;
  Task* last_ = nullptr;
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
  std::array<TaskList, 3> queues_;
  TaskList finished_;
  unsigned running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace onebit::collective
