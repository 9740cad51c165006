// The compute threads: every task runs once and comes back, the urgent ones first, and signals stay out.

#include "collective/thread_pool.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <thread>

namespace onebit::collective {
namespace {

struct Work final : Task {
  std::function<void()> body;
  void run() noexcept override { body(); }
};

std::unique_ptr<ThreadPool> pool_of(
    unsigned threads, std::function<void()> notify = [] {}) {
  auto made = ThreadPool::create(threads, std::move(notify));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

TEST(ThreadPool, RunsEveryTaskOnceAndGivesItBackOnce) {
  for (const unsigned threads : {1U, 2U, 7U}) {
    std::atomic<int> notified = 0;
    const auto pool = pool_of(threads, [&] { ++notified; });
    EXPECT_EQ(pool->threads(), threads);
    constexpr std::size_t kTasks = 2000;
    std::vector<Work> tasks(kTasks);
    std::vector<std::atomic<int>> runs(kTasks);
    std::vector<Task*> finished;
    for (std::size_t i = 0; i < kTasks; ++i) {
      tasks[i].body = [&runs, i] { ++runs[i]; };
      pool->submit(tasks[i], static_cast<Urgency>(i % 3));
      if (i % 100 == 0) pool->take_finished(finished);
    }
    pool->drain();
    pool->take_finished(finished);
    EXPECT_EQ(finished.size(), kTasks);
    for (const auto& count : runs) ASSERT_EQ(count, 1);
    EXPECT_GE(notified, 1);
    finished.clear();
    pool->take_finished(finished);
    EXPECT_TRUE(finished.empty());
  }
}

TEST(ThreadPool, TheMostUrgentTaskRunsFirstAndEqualOnesInOrder) {
  const auto pool = pool_of(1);
  std::latch gate(1);
  Work block;
  block.body = [&] { gate.wait(); };
  pool->submit(block, Urgency::kHigh);
  std::vector<int> order;
  std::vector<Work> tasks(6);
  const Urgency urgencies[] = {Urgency::kLow,  Urgency::kNormal, Urgency::kHigh,
                               Urgency::kHigh, Urgency::kLow,    Urgency::kNormal};
  for (int i = 0; i < 6; ++i) {
    tasks[static_cast<std::size_t>(i)].body = [&order, i] { order.push_back(i); };
    pool->submit(tasks[static_cast<std::size_t>(i)], urgencies[i]);
  }
  gate.count_down();
  pool->drain();
  EXPECT_EQ(order, (std::vector<int>{2, 3, 1, 5, 0, 4}));
}

TEST(ThreadPool, NotifiesWhenAFinishedTaskWaitsToBeTaken) {
  std::atomic<int> notified = 0;
  const auto pool = pool_of(2, [&] { ++notified; });
  std::vector<Task*> finished;
  for (int round = 1; round <= 100; ++round) {
    const int before = notified;
    Work task;
    task.body = [] {};
    pool->submit(task, Urgency::kNormal);
    pool->drain();
    for (int i = 0; i < 5000 && notified == before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GT(notified, before) << "a wait for this task would never end";
    finished.clear();
    pool->take_finished(finished);
    ASSERT_EQ(finished.size(), 1U);
  }
}

TEST(ThreadPool, IsIdleWhenNothingWasSubmitted) {
  const auto pool = pool_of(3);
  pool->drain();
  std::vector<Task*> finished;
  pool->take_finished(finished);
  EXPECT_TRUE(finished.empty());
}

TEST(ThreadPool, LeavesSignalsToTheProgram) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto pool = pool_of(1);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  for (const int number : {SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
    EXPECT_EQ(sigismember(&mine, number), sigismember(&before, number)) << "the maker's mask is as it was";
  }
  sigset_t theirs;
  Work task;
  task.body = [&] { pthread_sigmask(SIG_SETMASK, nullptr, &theirs); };
  pool->submit(task, Urgency::kNormal);
  pool->drain();
  for (const int number : {SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) EXPECT_EQ(sigismember(&theirs, number), 1);
}

}  // namespace
}  // namespace onebit::collective
