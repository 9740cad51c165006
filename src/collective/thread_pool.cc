#include "collective/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>

namespace onebit::collective {

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(unsigned threads, std::function<void()> notify) {
  std::unique_ptr<ThreadPool> pool(new ThreadPool(std::move(notify)));
  // The host program's signals are not for these threads: they inherit a mask that blocks all.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    for (unsigned i = 0; i < threads; ++i) {
      pool->threads_.emplace_back([raw = pool.get()] { raw->work(); });
      pthread_setname_np(pool->threads_.back().native_handle(), "onebit-compute");
    }
  } catch (const std::system_error& error) {
    status = Status::system(error.code().value(), "start a compute thread (ONEBIT_THREADS)");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return status;
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::submit(Task& task, Urgency urgency) {
  {
    const std::lock_guard lock(mutex_);
    queues_[static_cast<std::size_t>(urgency)].push_back(task);
  }
  work_ready_.notify_one();
}

void ThreadPool::take_finished(std::vector<Task*>& finished) {
  const std::lock_guard lock(mutex_);
  while (!finished_.empty()) finished.push_back(finished_.pop_front());
}

void ThreadPool::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] {
    return running_ == 0 &&
           std::all_of(queues_.begin(), queues_.end(), [](const auto& q) { return q.empty(); });
  });
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto queue = std::find_if(queues_.begin(), queues_.end(), [](const auto& q) { return !q.empty(); });
    if (queue == queues_.end()) {
      if (stopping_) return;
      if (running_ == 0) idle_.notify_all();
      work_ready_.wait(lock);
      continue;
    }
    Task* const task = queue->pop_front();
    ++running_;
    lock.unlock();
    task->run();
    lock.lock();
    --running_;
    const bool first = finished_.empty();
    finished_.push_back(*task);
    if (first) {
      lock.unlock();
      notify_();
      lock.lock();
    }
  }
}

}  // namespace onebit::collective
