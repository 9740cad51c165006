// Ranks that die, stop or leave: the others get an error that names them, in time, and none hangs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "support/processes.h"

namespace onebit::testing {
namespace {

using ::testing::HasSubstr;

/// Like a data loader's worker: it touches nothing of its parent's and outlives it. The test ends it.
void leave_a_child(Rank& rank) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);  // also when the test has failed
    for (;;) ::pause();
  }
  rank.report("child", child);
}

/// Reduces without end; says when it is under way, and how it ended. TEST_COUNT elements, tag TEST_TAG. The
/// ranks with TEST_FORK have a child meanwhile.
ONEBIT_ROLE(reduces_until_an_error) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  if (!rank.variable("TEST_FORK").empty()) leave_a_child(rank);
  std::vector<float> x(std::stoul(rank.variable("TEST_COUNT")), 1.0F);
  const std::string tag = rank.variable("TEST_TAG");
  onebitResult_t result = onebitSuccess;
  for (int call = 0; result == onebitSuccess; ++call) {
    std::fill(x.begin(), x.end(), 1.0F);
    result =
        onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg, tag.c_str(), comm, nullptr);
    if (result == onebitSuccess) rank.check(x.front() == 1.0F && x.back() == 1.0F, "a wrong sum");
    if (call == 5) rank.report("under way");
  }
  rank.report_result("ended", result);
  const double before = now();
  rank.check(onebitBarrier(comm) == result, "another result after the failure");
  rank.check(now() - before < 1, "a call after the failure takes long");
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

/// All but the last rank wait in a call; the last never makes it.
ONEBIT_ROLE(waits_for_the_last) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  std::vector<float> x(std::stoul(rank.variable("TEST_COUNT")), 1.0F);
  rank.check_ok(onebitBarrier(comm), "the first barrier");
  rank.report("under way");
  if (rank.number() == rank.ranks() - 1) {
    rank.wait_for("never");
    return;
  }
  rank.report_result("ended", onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg,
                                              rank.variable("TEST_TAG").c_str(), comm, nullptr));
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

void expect_named(Job& job, int victim, double since) {
  for (int rank = 0; rank < job.ranks(); ++rank) {
    if (rank == victim) continue;
    const auto ended = job[rank].await("ended");
    ASSERT_TRUE(ended) << "rank " << rank << " hangs; log: " << job[rank].log();
    EXPECT_NE(ended->code, onebitSuccess);
    EXPECT_THAT(ended->text, HasSubstr("rank " + std::to_string(victim)));
    EXPECT_LT(ended->at - since, prompt()) << "rank " << rank << ": " << ended->text;
  }
}

struct Traffic {
  const char* name;
  const char* count;
  const char* tag;
};
constexpr Traffic kTraffic[] = {
    {"SmallExact", "100", ""}, {"LargeExact", "2000000", ""}, {"OneBit", "2000000", "g"}};

class KilledAmidTraffic : public ::testing::TestWithParam<std::tuple<int, Traffic>> {
 protected:
  Environment environment() const {
    const Traffic& traffic = std::get<1>(GetParam());
    return {{"TEST_COUNT", traffic.count}, {"TEST_TAG", traffic.tag}};
  }
};
INSTANTIATE_TEST_SUITE_P(Jobs, KilledAmidTraffic,
                         ::testing::Combine(::testing::Values(2, 3, 8), ::testing::ValuesIn(kTraffic)),
                         [](const auto& each) {
                           return std::string(std::get<1>(each.param).name) +
                                  std::to_string(std::get<0>(each.param));
                         });

TEST_P(KilledAmidTraffic, InTheMiddleOfASeriesIsNamedByAllOthers) {
  const int ranks = std::get<0>(GetParam());
  for (const int victim : {0, ranks - 1}) {
    SCOPED_TRACE("victim " + std::to_string(victim));
    Job job("reduces_until_an_error", ranks, environment());
    ASSERT_TRUE(job.all_reported("under way", 60));
    const double since = now();
    job[victim].signal(SIGKILL);
    expect_named(job, victim, since);
    EXPECT_TRUE(job.ended_well(victim));
  }
}

TEST_P(KilledAmidTraffic, WhileTheOthersWaitInACallIsNamedByAllOthers) {
  const int ranks = std::get<0>(GetParam());
  Job job("waits_for_the_last", ranks, environment());
  ASSERT_TRUE(job.all_reported("under way", 60));
  ::usleep(300'000);
  const double since = now();
  job[ranks - 1].signal(SIGKILL);
  expect_named(job, ranks - 1, since);
  EXPECT_TRUE(job.ended_well(ranks - 1));
}

TEST(Killed, WithAForkedChildThatLivesOnIsNamedByAllOthersAtOnce) {
  for (const Traffic& traffic : kTraffic) {
    SCOPED_TRACE(traffic.name);
    Job job("reduces_until_an_error", 3, {{"TEST_COUNT", traffic.count}, {"TEST_TAG", traffic.tag}},
            {{1, {{"TEST_FORK", "1"}}}});
    const auto child = job[1].await("child", 60);
    ASSERT_TRUE(child);
    ASSERT_TRUE(job.all_reported("under way", 60));
    const double since = now();
    job[1].signal(SIGKILL);
    expect_named(job, 1, since);
    EXPECT_TRUE(job.ended_well(1));
    EXPECT_EQ(::kill(child->code, SIGKILL), 0) << "the child has not outlived its parent";
  }
}

TEST(Stopped, LongerThanTheTimeoutIsNamedByTheOthersAndGetsAnErrorWhenItGoesOn) {
  for (const Traffic& traffic : kTraffic) {
    SCOPED_TRACE(traffic.name);
    Job job("reduces_until_an_error", 3,
            {{"TEST_COUNT", traffic.count}, {"TEST_TAG", traffic.tag}, {"ONEBIT_TIMEOUT", "2s"}});
    ASSERT_TRUE(job.all_reported("under way", 60));
    const double since = now();
    job[1].signal(SIGSTOP);
    expect_named(job, 1, since + 2);
    job[1].signal(SIGCONT);
    const auto ended = job[1].await("ended", 10);
    ASSERT_TRUE(ended) << "the rank that was stopped hangs";
    EXPECT_NE(ended->code, onebitSuccess);
    EXPECT_THAT(ended->text, HasSubstr("rank "));
    EXPECT_TRUE(job.ended_well());
  }
}

TEST(Stopped, ShorterThanTheTimeoutGoesUnnoticed) {
  Job job("reduces_until_an_error", 2, {{"TEST_COUNT", "100000"}, {"TEST_TAG", "g"}});
  ASSERT_TRUE(job.all_reported("under way", 60));
  job[1].signal(SIGSTOP);
  ::usleep(500'000);
  job[1].signal(SIGCONT);
  EXPECT_FALSE(job[0].await("ended", 1));
}

/// Rank 0 sends what fits into the sockets and leaves; the others come later.
ONEBIT_ROLE(leaves_before_the_others_have_read) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  const std::size_t bytes = std::stoul(rank.variable("TEST_COUNT"));
  std::vector<std::uint8_t> x(bytes, rank.number() == 0 ? 7 : 0);
  if (rank.number() != 0) ::usleep(500'000);
  rank.check_ok(onebitBroadcast(x.data(), x.data(), bytes, onebitUint8, 0, comm, nullptr), "broadcast");
  rank.check(x.front() == 7 && x.back() == 7, "wrong bytes");
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

TEST(Leaving, BeforeTheOthersHaveReadWhatWasSentIsNoFailure) {
  for (const char* bytes : {"1", "200000", "5000000"}) {
    for (const int ranks : {2, 5}) {
      SCOPED_TRACE(bytes);
      Job job("leaves_before_the_others_have_read", ranks, {{"TEST_COUNT", bytes}});
      EXPECT_TRUE(job.ended_well());
    }
  }
}

ONEBIT_ROLE(leaves_where_a_call_is_due) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  rank.check_ok(onebitBarrier(comm), "barrier");
  if (rank.number() == 1) {
    ::usleep(200'000);
    rank.report("left");
    rank.check_ok(onebitCommDestroy(comm), "destroy");
    return;
  }
  if (rank.variable("TEST_LATE") == "yes") ::usleep(500'000);
  std::vector<float> x(std::stoul(rank.variable("TEST_COUNT")), 1.0F);
  rank.report_result("ended", onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg,
                                              rank.variable("TEST_TAG").c_str(), comm, nullptr));
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

TEST(Leaving, WhereACallIsDueIsAnErrorThatNamesTheRank) {
  for (const Traffic& traffic : kTraffic) {
    for (const int ranks : {2, 4}) {
      const char* const late =
          ranks == 2 ? "yes" : "no";  // whether the others call before or after it leaves
      SCOPED_TRACE(traffic.name);
      Job job("leaves_where_a_call_is_due", ranks,
              {{"TEST_COUNT", traffic.count}, {"TEST_TAG", traffic.tag}, {"TEST_LATE", late}});
      const auto left = job[1].await("left", 60);
      ASSERT_TRUE(left);
      expect_named(job, 1, left->at);
      EXPECT_TRUE(job.ended_well());
    }
  }
}

/// Dies without a word while the others come together.
ONEBIT_ROLE(comes_and_dies) {
  if (rank.number() == rank.ranks() - 1) {
    const std::string when = rank.variable("TEST_DIE_AFTER_US");
    if (::fork() == 0) {  // a child kills its parent from outside at a moment of set-up
      ::usleep(static_cast<useconds_t>(std::stoul(when)));
      ::kill(::getppid(), SIGKILL);
      ::_exit(0);
    }
  }
  onebitComm_t comm = rank.init();
  onebitResult_t result = comm == nullptr ? onebitSystemError : onebitSuccess;
  while (result == onebitSuccess) result = onebitBarrier(comm);
  rank.report_result("ended", result);
  onebitCommDestroy(comm);
}

TEST(KilledDuringSetUp, AtAnyMomentOfSetUpLeavesNoRankHanging) {
  for (const char* after : {"0", "2000", "5000", "10000", "20000", "40000", "80000"}) {
    SCOPED_TRACE(after);
    Job job("comes_and_dies", 4, {{"TEST_DIE_AFTER_US", after}, {"ONEBIT_INIT_TIMEOUT", "4s"}});
    EXPECT_TRUE(job.ended_well(3));
  }
}

/// Kills this process as soon as it has `number` sockets.
void die_with_sockets(std::ptrdiff_t number) {
  const auto is_socket = [](const std::filesystem::directory_entry& entry) {
    std::error_code closed_meanwhile;
    return std::filesystem::read_symlink(entry, closed_meanwhile).string().starts_with("socket:");
  };
  for (;;) {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    if (std::count_if(begin(all), end(all), is_socket) >= number) ::kill(::getpid(), SIGKILL);
  }
}

ONEBIT_ROLE(dies_while_it_connects) {
  std::thread watcher;
  if (rank.number() == rank.ranks() - 1) {
    watcher = std::thread(die_with_sockets, std::stol(rank.variable("TEST_SOCKETS")));
  }
  onebitComm_t comm = nullptr;
  onebitResult_t result = onebitCommInitEnv(&comm, nullptr);
  while (result == onebitSuccess) result = onebitBarrier(comm);
  rank.report_result("ended", result);
  onebitCommDestroy(comm);
}

TEST(KilledDuringSetUp, WhileRanksConnectIsNamedByAllOthersAtOnce) {
  // The last rank's own: one to rank 0, one that listens, two to each other rank.
  for (const char* sockets : {"2", "3", "4", "5", "6"}) {
    SCOPED_TRACE(std::string(sockets) + " sockets");
    Job job("dies_while_it_connects", 4, {{"TEST_SOCKETS", sockets}, {"ONEBIT_INIT_TIMEOUT", "60s"}});
    ASSERT_TRUE(job[3].wait());
    expect_named(job, 3, now());
    EXPECT_TRUE(job.ended_well(3));
  }
}

}  // namespace
}  // namespace onebit::testing
