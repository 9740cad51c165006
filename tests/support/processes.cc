// The machinery of processes.h, and the main() of test programs whose ranks are processes.
#include "support/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace onebit::testing {
namespace {

// Where a rank finds its pipes: above what it opens itself, also under a limit of 64 files.
constexpr int kReportsFd = 100;
constexpr int kControlFd = 101;
constexpr const char* kRoleFlag = "--rank-role";

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> all;
  return all;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

int free_port() {
  // Below the range that the system gives to outgoing connections, another one for each call and process.
  static int next = 0;
  for (int tried = 0; tried < 2000; ++tried) {
    const int port = 12000 + (getpid() * 37 + next++) % 18000;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (free) return port;
  }
  return 0;
}

Report parse(const std::string& line) {
  // what TAB code TAB at TAB text
  Report report;
  std::size_t at = line.find('\t');
  report.what = line.substr(0, at);
  char* rest = nullptr;
  report.code = static_cast<int>(std::strtol(line.c_str() + at + 1, &rest, 10));
  report.at = std::strtod(rest + 1, &rest);
  report.text = *rest == '\t' ? rest + 1 : rest;
  return report;
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double prompt() {
  return sanitized() ? 15 : 5;
}

// ---- the rank's side ----

std::string Rank::variable(const char* name) const {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

onebitComm_t Rank::init() {
  onebitComm_t comm = nullptr;
  const onebitConfig_t config = ONEBIT_CONFIG_INITIALIZER;
  report_result("init", onebitCommInitEnv(&comm, &config));
  return comm;
}

void Rank::report(std::string_view what, int code, std::string_view text) {
  char head[64];
  std::snprintf(head, sizeof head, "\t%d\t%.6f\t", code, now());
  std::string line(what);
  line.append(head).append(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  write_all(kReportsFd, line + '\n');
}

void Rank::report_result(std::string_view what, onebitResult_t result) {
  report(what, result, result == onebitSuccess ? "" : onebitGetLastError(nullptr));
}

void Rank::check(bool holds, std::string_view text) {
  if (holds) return;
  failed_ = true;
  report("failed", 1, text);
}

void Rank::check_ok(onebitResult_t result, std::string_view what) {
  check(result == onebitSuccess, std::string(what) + ": " + onebitGetLastError(nullptr));
}

void Rank::wait_for(std::string_view word) {
  std::string line;
  char c = 0;
  for (;;) {
    const ssize_t got = ::read(kControlFd, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) std::_Exit(3);  // the test is gone
    if (c != '\n') {
      line += c;
    } else if (line == word) {
      return;
    } else {
      line.clear();
    }
  }
}

RoleRegistration::RoleRegistration(const char* name, Role role) {
  roles()[name] = role;
}

// ---- the test's side ----

RankProcess::RankProcess(const char* role, int rank, int ranks, const Environment& environment,
                         const std::vector<std::string>& launcher) {
  int reports[2];
  int control[2];
  if (::pipe2(reports, O_CLOEXEC) != 0 || ::pipe2(control, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "pipe2: " << std::strerror(errno);
    return;
  }
  log_fd_ = ::memfd_create("log", MFD_CLOEXEC);

  std::vector<std::string> words = launcher;
  words.insert(words.end(), {"/proc/self/exe", kRoleFlag, role, std::to_string(rank), std::to_string(ranks)});
  if (!launcher.empty()) {  // /proc/self would be the launcher
    char self[4096];
    const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
    words[launcher.size()] = std::string(self, static_cast<std::size_t>(std::max<ssize_t>(0, length)));
  }
  Environment all = environment;
  all["RANK"] = std::to_string(rank);
  all["WORLD_SIZE"] = std::to_string(ranks);
  all["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin";
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH"}) {
    if (const char* value = std::getenv(name); value != nullptr) all.emplace(name, value);
  }
  std::vector<std::string> settings;
  for (const auto& [name, value] : all) settings.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& s : strings) result.push_back(s.data());
    result.push_back(nullptr);
    return result;
  };

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log_fd_, 1);
  posix_spawn_file_actions_adddup2(&actions, log_fd_, 2);
  posix_spawn_file_actions_adddup2(&actions, reports[1], kReportsFd);
  posix_spawn_file_actions_adddup2(&actions, control[0], kControlFd);
  const int failure = ::posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, pointers(words).data(),
                                     pointers(settings).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(reports[1]);
  ::close(control[0]);
  reports_fd_ = reports[0];
  control_fd_ = control[1];
  if (failure != 0) {
    pid_ = -1;
    ADD_FAILURE() << "start " << words.front() << ": " << std::strerror(failure);
  }
}

RankProcess::~RankProcess() {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {reports_fd_, control_fd_, log_fd_}) {
    if (fd >= 0) ::close(fd);
  }
}

void RankProcess::signal(int number) const {
  if (pid_ > 0 && !status_) ::kill(pid_, number);
}

void RankProcess::tell(std::string_view word) const {
  write_all(control_fd_, std::string(word) + '\n');
}

bool RankProcess::read_more(double deadline) {
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      reports_.push_back(parse(unread_.substr(0, end)));
      unread_.erase(0, end + 1);
      return true;
    }
    pollfd entry{reports_fd_, POLLIN, 0};
    const int left = static_cast<int>(std::max(0.0, (deadline - now()) * 1000));
    const int ready = ::poll(&entry, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(reports_fd_, buffer, sizeof buffer);
    if (got <= 0) return false;
    unread_.append(buffer, static_cast<std::size_t>(got));
  }
}

std::optional<Report> RankProcess::await(std::string_view what, double seconds) {
  const double deadline = now() + seconds;
  do {
    while (seen_ < reports_.size()) {
      const Report& report = reports_[seen_++];
      if (report.what == what) return report;
    }
  } while (read_more(deadline));
  return std::nullopt;
}

std::optional<int> RankProcess::wait(double seconds) {
  if (pid_ < 0 || status_) return status_;
  const double deadline = now() + seconds;
  while (read_more(deadline)) {
  }
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (now() > deadline) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
      return std::nullopt;
    }
    ::usleep(2000);
  }
  status_ = status;
  return status_;
}

std::string RankProcess::log() const {
  std::string text;
  char buffer[4096];
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(log_fd_, buffer, sizeof buffer, at);
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    at += got;
  }
}

Environment local_job(int ranks) {
  Environment environment;
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(free_port());
  environment["WORLD_SIZE"] = std::to_string(ranks);
  environment["ONEBIT_SOCKET_IFNAME"] = "lo";
  environment["ONEBIT_INIT_TIMEOUT"] = "60s";
  environment["ONEBIT_TIMEOUT"] = "60s";
  environment["ONEBIT_THREADS"] = "1";
  environment["ONEBIT_MIN_SIZE"] = "0";
  return environment;
}

Job::Job(const char* role, int ranks, const Environment& environment) : Job(role, ranks, environment, {}) {}

Job::Job(const char* role, int ranks, const Environment& environment,
         const std::map<int, Environment>& of_rank) {
  const Environment common = local_job(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    Environment own;
    if (const auto found = of_rank.find(rank); found != of_rank.end()) own = found->second;
    own.insert(environment.begin(), environment.end());
    own.insert(common.begin(), common.end());
    processes_.push_back(std::make_unique<RankProcess>(role, rank, ranks, own));
  }
}

void Job::tell_all(std::string_view word) const {
  for (const auto& process : processes_) process->tell(word);
}

::testing::AssertionResult Job::all_reported(std::string_view what, double seconds) {
  const double deadline = now() + seconds;
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto report = (*this)[rank].await(what, deadline - now());
    if (!report) {
      return ::testing::AssertionFailure()
             << "rank " << rank << " has not reported '" << what << "'; its log: " << (*this)[rank].log();
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Job::ended_well(int except, double seconds) {
  const double deadline = now() + seconds;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == except) continue;
    RankProcess& process = (*this)[rank];
    const auto status = process.wait(deadline - now());
    if (status && *status == 0) continue;
    auto failure = ::testing::AssertionFailure();
    failure << "rank " << rank << (status ? " ended with wait status " + std::to_string(*status) : " hung");
    for (const Report& report : process.reports()) {
      failure << "\n  " << report.what << " " << report.code << " " << report.text;
    }
    return failure << "\n  log: " << process.log();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace onebit::testing

int main(int argc, char** argv) {
  using namespace onebit::testing;
  if (argc == 5 && std::strcmp(argv[1], kRoleFlag) == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto role = roles().find(argv[2]);
    if (role == roles().end()) return 2;
    Rank rank(std::atoi(argv[3]), std::atoi(argv[4]));
    role->second(rank);
    return rank.exit_status();
  }
  ::signal(SIGPIPE, SIG_IGN);  // a rank may be dead when the test tells it something
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
