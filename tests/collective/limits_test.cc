// What a process may have done to itself: few files, no standard streams, children, a storm of signals. Ranks
// are processes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/processes.h"

namespace onebit::testing {
namespace {

using ::testing::HasSubstr;

/// Exact and compressed calls of sizes of both schedules, checked.
void check_calls(Rank& rank, onebitComm_t comm, int rounds = 3) {
  for (int round = 0; round < rounds; ++round) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{3000}, std::size_t{700'000}}) {
      for (const char* tag : {"", "g"}) {
        std::vector<float> x(count, 2.0F);
        const std::string name = std::string(tag) + std::to_string(count);
        rank.check_ok(onebitAllReduce(x.data(), x.data(), count, onebitFloat32, onebitSum,
                                      *tag == 0 ? "" : name.c_str(), comm, nullptr),
                      "allreduce of " + name);
        const float due = 2.0F * static_cast<float>(rank.ranks());
        rank.check(x.front() == due && x.back() == due, "a wrong sum of " + name);
      }
    }
  }
}

// ---- RLIMIT_NOFILE ----

ONEBIT_ROLE(has_few_files) {
  if (rank.variable("TEST_LIMITED") == "yes") {
    const rlimit few{64, 64};
    rank.check(::setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
  }
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  check_calls(rank, comm, 1);
  rank.report("done");
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

TEST(FewFiles, SixtyFourAreEnoughForAFewRanks) {
  for (const int ranks : {2, 8}) {
    Job job("has_few_files", ranks, {{"TEST_LIMITED", "yes"}});
    EXPECT_TRUE(job.all_reported("done", 60));
    EXPECT_TRUE(job.ended_well());
  }
}

TEST(FewFiles, ThatDoNotSufficeAreAnErrorThatNamesTheLimitAndNobodyHangs) {
  if (sanitized()) GTEST_SKIP() << "the sanitizer for undefined behaviour needs file descriptors of its own";
  for (const int limited : {0, 1, 4}) {
    SCOPED_TRACE("limited is rank " + std::to_string(limited));
    Job job("has_few_files", 5, {{"ONEBIT_TCP_FLOWS", "20"}}, {{limited, {{"TEST_LIMITED", "yes"}}}});
    for (int rank = 0; rank < 5; ++rank) {
      const auto init = job[rank].await("init", 30);
      ASSERT_TRUE(init) << "rank " << rank << " hangs; log: " << job[rank].log();
      EXPECT_NE(init->code, onebitSuccess) << "rank " << rank;
      if (rank == limited) {
        EXPECT_EQ(init->code, onebitSystemError) << init->text;
        EXPECT_THAT(init->text, HasSubstr("RLIMIT_NOFILE"));
      } else {
        EXPECT_THAT(init->text, HasSubstr("rank " + std::to_string(limited))) << "rank " << rank;
      }
    }
    EXPECT_TRUE(job.ended_well());
  }
}

// ---- no standard streams ----

ONEBIT_ROLE(has_no_standard_streams) {
  for (const int fd : {0, 1, 2}) ::close(fd);
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  for (const int fd : {0, 1, 2}) {
    struct stat info {};
    const bool socket = ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
    rank.check(!socket, "a connection has the number of a standard stream: " + std::to_string(fd));
  }
  for (int i = 0; i < 100; ++i) {
    std::fprintf(stderr, "what a program prints must not get onto the wire\n");
    std::fprintf(stdout, "what a program prints must not get onto the wire\n");
    std::fflush(stdout);
  }
  check_calls(rank, comm);
  rank.check_ok(onebitCommDestroy(comm), "destroy");
  rank.report("done");
}

TEST(NoStandardStreams, AJobRunsAndWhatIsPrintedDoesNotGetOntoTheWire) {
  Job job("has_no_standard_streams", 3, {{"ONEBIT_DEBUG", "INFO"}});
  EXPECT_TRUE(job.all_reported("done", 60));
  EXPECT_TRUE(job.ended_well());
}

// ---- fork ----

/// What the child of a rank may do: nothing. Gives the number of things that went wrong.
int misuse(onebitComm_t comm) {
  int wrong = 0;
  const auto refused = [&](onebitResult_t result) {
    if (result != onebitInvalidUsage ||
        std::string(onebitGetLastError(nullptr)).find("fork") == std::string::npos)
      ++wrong;
  };
  std::vector<float> x(300'000, 1.0F);
  std::array<char, 100> text{};
  std::size_t bytes = 0;
  int number = 0;
  onebitStats_t stats{};
  stats.size = sizeof stats;
  onebitResult_t result = onebitSuccess;
  refused(onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitSum, "", comm, nullptr));
  refused(onebitAllReduce(x.data(), x.data(), 10, onebitFloat32, onebitSum, "g", comm, nullptr));
  refused(onebitBroadcast(x.data(), x.data(), 10, onebitFloat32, 0, comm, nullptr));
  refused(onebitAllGather(x.data(), x.data() + 10, 1, onebitFloat32, comm, nullptr));
  refused(onebitBarrier(comm));
  refused(onebitResidualSave(comm, "/tmp"));
  refused(onebitResidualLoad(comm, "/tmp"));
  refused(onebitResidualReset(comm, nullptr));
  refused(onebitResidualMemory(comm, nullptr, &bytes));
  double worker = 0;
  double owner = 0;
  refused(onebitResidualNorm(comm, nullptr, &worker, &owner));
  refused(onebitExplain(x.data(), 1, onebitFloat32, onebitSum, "", comm, text.data(), text.size()));
  refused(onebitCommGetStats(comm, &stats));
  refused(onebitCommCount(comm, &number));
  refused(onebitCommUserRank(comm, &number));
  refused(onebitCommAbort(comm));
  refused(onebitCommGetAsyncError(comm, &result));
  if (onebitCommDestroy(comm) != onebitSuccess) ++wrong;
  return wrong;
}

ONEBIT_ROLE(has_children) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  check_calls(rank, comm, 1);
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(i == 1 ? 0 : misuse(comm));  // one ends without having touched it
    int status = -1;
    ::waitpid(child, &status, 0);
    rank.check(status == 0, "a child's calls: wait status " + std::to_string(status));
    check_calls(rank, comm, 1);
  }
  // One lives on while its parent goes.
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(300'000);
    ::_exit(misuse(comm));
  }
  check_calls(rank, comm, 1);
  rank.check_ok(onebitCommDestroy(comm), "destroy");
  int status = -1;
  ::waitpid(child, &status, 0);
  rank.check(status == 0, "the last child's calls: wait status " + std::to_string(status));
  rank.report("done");
}

TEST(Fork, AChildIsInertAndDoesNotDisturbItsParent) {
  Job job("has_children", 3, {{"ONEBIT_THREADS", "2"}});
  EXPECT_TRUE(job.all_reported("done", 60));
  EXPECT_TRUE(job.ended_well());
}

/// A child may have communicators of its own, after its parent's.
ONEBIT_ROLE(works_in_a_child) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  check_calls(rank, comm, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string port = std::to_string(std::stoi(rank.variable("MASTER_PORT")) + 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    onebitComm_t own = rank.init();
    if (own == nullptr) ::_exit(9);
    check_calls(rank, own, 1);
    rank.check_ok(onebitCommDestroy(own), "destroy");
    ::_exit(rank.exit_status());
  }
  check_calls(rank, comm, 5);
  int status = -1;
  ::waitpid(child, &status, 0);
  rank.check(status == 0, "the child's own communicator: wait status " + std::to_string(status));
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

TEST(Fork, AChildMayHaveCommunicatorsOfItsOwn) {
  if (sanitized()) GTEST_SKIP() << "threads in a forked child are not for the sanitizers";
  Job job("works_in_a_child", 3);
  EXPECT_TRUE(job.ended_well());
}

// ---- signals ----

std::atomic<int> g_signals{0};

ONEBIT_ROLE(is_in_a_storm_of_signals) {
  struct sigaction action {};
  action.sa_handler = [](int) { ++g_signals; };
  action.sa_flags = 0;  // no SA_RESTART: every blocking call is interrupted
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval each_millisecond{{0, 1000}, {0, 1000}};
  ::setitimer(ITIMER_REAL, &each_millisecond, nullptr);
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  check_calls(rank, comm, 10);
  if (rank.number() == 0) ::usleep(300'000);
  rank.check_ok(onebitBarrier(comm), "a barrier that waits");
  rank.check_ok(onebitResidualSave(comm, rank.variable("TEST_DIRECTORY").c_str()), "save");
  rank.check_ok(onebitResidualLoad(comm, rank.variable("TEST_DIRECTORY").c_str()), "load");
  rank.check_ok(onebitCommDestroy(comm), "destroy");
  rank.check(g_signals > 10, "no storm");
  rank.report("done");
}

TEST(Signals, AStormOfThemDisturbsNothing) {
  std::string directory = "/tmp/onebit-signals-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  Job job("is_in_a_storm_of_signals", 3, {{"TEST_DIRECTORY", directory}, {"ONEBIT_THREADS", "2"}});
  EXPECT_TRUE(job.all_reported("done", 120));
  EXPECT_TRUE(job.ended_well());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(::unlink((directory + "/world.rank-" + std::to_string(rank) + "-of-3.residuals").c_str()), 0);
  }
  EXPECT_EQ(::rmdir(directory.c_str()), 0) << "nothing else is left there";
}

}  // namespace
}  // namespace onebit::testing
