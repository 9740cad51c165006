// A rank that waits for another: it polls for a moment and sleeps then, and how long it polls changes nothing
// but time.

#include <gtest/gtest.h>
#include <onebit/onebit.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <latch>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace onebit::testing {
namespace {

using std::chrono::milliseconds;

milliseconds cpu_time_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto ms = [](const timeval& t) { return t.tv_sec * 1000 + t.tv_usec / 1000; };
  return milliseconds(ms(usage.ru_utime) + ms(usage.ru_stime));
}

TEST(Waiting, ForALateRankSleepsAfterAMoment) {
  run_ranks(2, [](int rank, onebitComm_t comm) {
    ASSERT_TRUE(succeeded(onebitBarrier(comm)));
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(400));
      ASSERT_TRUE(succeeded(onebitBarrier(comm)));
      return;
    }
    const auto before = cpu_time_of_this_thread();
    ASSERT_TRUE(succeeded(onebitBarrier(comm)));
    EXPECT_LT(cpu_time_of_this_thread() - before, milliseconds(100));
  });
}

TEST(Waiting, PollingForAsLongAsItTakesOrNotAtAllGivesTheSameSums) {
  for (const char* spin : {"ONEBIT_SPIN_US=0", "ONEBIT_SPIN_US=1000000"}) {
    SCOPED_TRACE(spin);
    RankOptions options;
    options.settings = spin;
    run_ranks(
        3,
        [](int rank, onebitComm_t comm) {
          for (const std::size_t count : {1UL, 1000UL, 300'000UL}) {
            std::vector<std::int32_t> values(count, rank + 1);
            ASSERT_TRUE(succeeded(onebitAllReduce(values.data(), values.data(), count, onebitInt32, onebitSum,
                                                  nullptr, comm, nullptr)));
            ASSERT_EQ(values, std::vector<std::int32_t>(count, 6));
          }
        },
        options);
  }
}

TEST(Waiting, AnAbortEndsAWaitThatPolls) {
  std::latch aborted(1);
  RankOptions options;
  options.settings = "ONEBIT_SPIN_US=1000000";
  run_ranks(
      2,
      [&](int rank, onebitComm_t comm) {
        if (rank == 1) return aborted.wait();
        std::thread other([&] { EXPECT_TRUE(succeeded(onebitCommAbort(comm))); });
        EXPECT_EQ(onebitBarrier(comm), onebitAborted);
        other.join();
        aborted.count_down();
      },
      options);
}

}  // namespace
}  // namespace onebit::testing
