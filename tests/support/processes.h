// Ranks for tests as real processes: the test program starts itself again, once a rank, with a role to play.
//
// A role is a function in the test program, made known by ONEBIT_ROLE. It runs in a process of its own with
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, reports to the test over a pipe and hears from it over
// another; its stderr is kept. A process that does not end by its deadline is killed, and the test fails.
// Threads: the test's side from one thread. processes.cc holds main().
#pragma once

#include <gtest/gtest.h>
#include <onebit/onebit.h>
#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/sanitizers.h"

namespace onebit::testing {

using Environment = std::map<std::string, std::string>;

/// What a rank tells the test.
struct Report {
  std::string what;
  int code = 0;
  std::string text;
  double at = 0;  ///< seconds of the monotonic clock, the same for all processes
};

/// Seconds of the monotonic clock.
double now();

/// A rank's own side.
class Rank {
 public:
  Rank(int number, int ranks) : number_(number), ranks_(ranks) {}
  int number() const { return number_; }
  int ranks() const { return ranks_; }
  /// A variable of the environment that the test has set; "" if it has not.
  std::string variable(const char* name) const;

  /// onebitCommInitEnv; null after an error, which is reported as "init".
  onebitComm_t init();
  void report(std::string_view what, int code = 0, std::string_view text = "");
  /// Reports a call's result with the library's words.
  void report_result(std::string_view what, onebitResult_t result);
  /// Reports "failed" with `text` unless `holds`; the process then ends with status 1.
  void check(bool holds, std::string_view text);
  void check_ok(onebitResult_t result, std::string_view what);
  /// Waits until the test says `word`.
  void wait_for(std::string_view word);
  int exit_status() const { return failed_ ? 1 : 0; }

 private:
  int number_;
  int ranks_;
  bool failed_ = false;
};

using Role = void (*)(Rank&);
struct RoleRegistration {
  RoleRegistration(const char* name, Role role);
};
/// Defines the role NAME: ONEBIT_ROLE(name) { rank.init(); ... }
#define ONEBIT_ROLE(name)                                                             \
  static void name(::onebit::testing::Rank& rank);                                    \
  static const ::onebit::testing::RoleRegistration name##_registration(#name, &name); \
  static void name([[maybe_unused]] ::onebit::testing::Rank& rank)

/// The test's side of one rank.
class RankProcess {
 public:
  /// `launcher`: words before the program's own name, such as "ip netns exec NAME".
  RankProcess(const char* role, int rank, int ranks, const Environment& environment,
              const std::vector<std::string>& launcher = {});
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  void tell(std::string_view word) const;
  /// The next report named `what`, others are skipped; nothing at the deadline or when the process ends.
  std::optional<Report> await(std::string_view what, double seconds = 30);
  /// All reports of a process that has ended.
  const std::vector<Report>& reports() const { return reports_; }
  /// Waits for the end: the status as of waitpid, or nothing if it had to be killed.
  std::optional<int> wait(double seconds = 60);
  std::string log() const;

 private:
  bool read_more(double deadline);

  pid_t pid_ = -1;
  int reports_fd_ = -1;
  int control_fd_ = -1;
  int log_fd_ = -1;
  std::string unread_;
  std::vector<Report> reports_;
  std::size_t seen_ = 0;
  std::optional<int> status_;
};

/// All ranks of a job on this machine's loopback, one role.
class Job {
 public:
  Job(const char* role, int ranks, const Environment& environment = {});
  /// With some variables for some ranks only.
  Job(const char* role, int ranks, const Environment& environment, const std::map<int, Environment>& of_rank);
  RankProcess& operator[](int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(processes_.size()); }
  void tell_all(std::string_view word) const;
  /// Every rank has reported `what`; says which did not, with its log.
  ::testing::AssertionResult all_reported(std::string_view what, double seconds = 30);
  /// Every rank but `except` ends with status 0 and nothing "failed"; says which did not, with its log.
  ::testing::AssertionResult ended_well(int except = -1, double seconds = 60);

 private:
  std::vector<std::unique_ptr<RankProcess>> processes_;
};

/// Loopback, short deadlines, and the variables with which ranks find each other on a port that is free now.
Environment local_job(int ranks);
/// How long after a fault the others may take to notice: the 2 s that are promised, and slack for a crowded
/// machine.
double prompt();

}  // namespace onebit::testing
