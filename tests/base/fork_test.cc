// Locks and fork: a child can take every lock, whatever other threads of its parent were doing.
#include "base/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/log.h"
#include "support/sanitizers.h"

namespace onebit {
namespace {

ForkMutex& g_table_lock = *new ForkMutex(LockLevel::kTable);

/// 0 when `body` has come to its end in a forked child, while `meanwhile` runs all the time in another
/// thread.
template <typename Body, typename Meanwhile>
int forked(int times, const Body& body, const Meanwhile& meanwhile) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      meanwhile();
      std::this_thread::yield();
    }
  });
  int failed = 0;
  for (int i = 0; i < times && failed == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      body();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    failed = status;
  }
  stop = true;
  other.join();
  return failed;
}

TEST(ForkMutex, IsFreeInAChild) {
  if (testing::sanitized()) GTEST_SKIP() << "threads and forked children are not for the sanitizers";
  const auto use = [] { const std::lock_guard lock(g_table_lock); };
  EXPECT_EQ(0, forked(200, use, use));
}

TEST(ForkMutex, OfTheLogIsFreeInAChildAlsoUnderAnotherLock) {
  if (testing::sanitized()) GTEST_SKIP() << "threads and forked children are not for the sanitizers";
  const LogLevel before = log_level();
  set_log_level(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  const int failed = forked(
      100, [] { log(LogLevel::kInfo, "from a child"); },
      [] {
        const std::lock_guard lock(g_table_lock);
        log(LogLevel::kInfo, "from the parent");
      });
  const std::string text = ::testing::internal::GetCapturedStderr();
  set_log_level(before);
  EXPECT_EQ(0, failed);
  EXPECT_NE(text.find("from a child"), std::string::npos);
}

}  // namespace
}  // namespace onebit
