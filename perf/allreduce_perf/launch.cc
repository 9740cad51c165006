#include "launch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/unique_fd.h"

namespace onebit::perf {
namespace {

using Clock = std::chrono::steady_clock;

// How long ranks have to end by themselves once one has failed, and once they were asked to.
constexpr std::chrono::milliseconds kAfterFailure{3000};
constexpr std::chrono::milliseconds kAfterTerminate{1000};

void complain(const std::string& text) {
  // A rank may have died in the middle of a progress line.
  fmt::print(stderr, "{}onebit_allreduce_perf: {}\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", text);
}

/// A loopback port for rank 0. It is held, bound but not listening, so that nobody else is given it before
/// rank 0 listens there (both set SO_REUSEADDR).
struct HeldPort {
  UniqueFd socket;
  int port = 0;
};
std::optional<HeldPort> hold_port() {
  HeldPort held{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (!held.socket || setsockopt(held.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(held.socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(held.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    complain(fmt::format("no port on 127.0.0.1 for the ranks to meet at: {}", std::strerror(errno)));
    return std::nullopt;
  }
  held.port = ntohs(address.sin_port);
  return held;
}

/// What torchrun would set, for all ranks alike. RANK and LOCAL_RANK come with each.
void set_job_environment(int ranks, int port) {
  setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  // A launcher that started this process must not be taken for the one that starts its ranks.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                           "SLURM_PROCID", "SLURM_NTASKS"}) {
    unsetenv(name);
  }
  std::array<unsigned char, 16> random{};
  const bool has_secret =
      std::getenv("ONEBIT_SECRET") != nullptr || std::getenv("ONEBIT_SECRET_FILE") != nullptr;
  if (!has_secret && getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size())) {
    std::string secret;
    for (const unsigned char byte : random) secret += fmt::format("{:02x}", byte);
    setenv("ONEBIT_SECRET", secret.c_str(), 1);
  }
}

/// The ranks that run, and the signals that concern them.
class Ranks {
 public:
  explicit Ranks(int count) : children_(static_cast<std::size_t>(count)) {
    sigemptyset(&awaited_);
    sigaddset(&awaited_, SIGCHLD);
    // Whoever started this process may ignore signals: with SIGCHLD ignored there is nothing to wait for, and
    // what nohup has ignored must stay so (a blocked signal is delivered although it is ignored).
    std::signal(SIGCHLD, SIG_DFL);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction current {};
      if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_IGN) {
        sigaddset(&awaited_, signal);
      }
    }
    sigprocmask(SIG_BLOCK, &awaited_, &before_);
  }
  ~Ranks() {
    signal_all(SIGKILL);
    for (const Child& child : children_) {
      if (child.running) waitpid(child.pid, nullptr, 0);
    }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  bool start(std::size_t rank, const std::vector<char*>& argv) {
    const pid_t parent = getpid();
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it died before prctl
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      execv("/proc/self/exe", argv.data());
      complain(fmt::format("/proc/self/exe cannot be started again: {}", std::strerror(errno)));
      _exit(1);
    }
    if (pid < 0) {
      complain(fmt::format("rank {} of {} cannot be started: fork: {}", rank, children_.size(),
                           std::strerror(errno)));
      return false;
    }
    children_[rank] = {pid, true};
    return true;
  }

  /// Waits for all. The exit status as run_local_ranks returns it.
  int wait() {
    int status = 0;
    std::optional<Clock::time_point> patience;  // since something went wrong: when to be harsher
    bool terminated = false;
    while (running() > 0) {
      siginfo_t info{};
      const int signal = next_signal(patience, &info);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
        if (status == 0) {
          status = 128 + signal;
          complain(fmt::format("ended by SIG{}", sigabbrev_np(signal)));
          explained_ = true;
        }
        patience = Clock::now();
      }
      if (const int failure = reap(); failure != 0 && status == 0) {
        status = failure;
        patience = Clock::now() + kAfterFailure;
      }
      if (patience && Clock::now() >= *patience) {
        signal_all(terminated ? SIGKILL : SIGTERM);
        terminated = true;
        patience = Clock::now() + kAfterTerminate;
      }
    }
    return status;
  }

 private:
  struct Child {
    pid_t pid = 0;
    bool running = false;
  };

  std::size_t running() const {
    return static_cast<std::size_t>(
        std::count_if(children_.begin(), children_.end(), [](const Child& child) { return child.running; }));
  }

  void signal_all(int signal) const {
    for (const Child& child : children_) {
      if (child.running) kill(child.pid, signal);
    }
  }

  /// The next awaited signal; 0 when `until` has come.
  int next_signal(const std::optional<Clock::time_point>& until, siginfo_t* info) const {
    if (!until) return sigwaitinfo(&awaited_, info);
    const auto left = std::max(*until - Clock::now(), Clock::duration::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec time{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    return std::max(sigtimedwait(&awaited_, info, &time), 0);
  }

  /// Collects those that have ended, and says of the first failure which rank it was. Its exit status, or 0.
  int reap() {
    int status = 0;
    std::string what;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int how = 0;
      if (!child.running) continue;
      const pid_t ended = waitpid(child.pid, &how, WNOHANG);
      if (ended == 0 || (ended < 0 && errno != ECHILD)) continue;
      child.running = false;
      if (ended < 0) continue;  // somebody else has collected it
      // Of several that are found at once, one that was killed is the cause, not one that gave up.
      if (WIFSIGNALED(how) && status < 128) {
        status = 128 + WTERMSIG(how);
        what =
            fmt::format("rank {} (pid {}) was ended by SIG{}", rank, child.pid, sigabbrev_np(WTERMSIG(how)));
      } else if (WIFEXITED(how) && WEXITSTATUS(how) != 0 && status == 0) {
        status = WEXITSTATUS(how);
        what = fmt::format("rank {} (pid {}) failed with exit status {}", rank, child.pid, status);
      }
    }
    if (status != 0 && !std::exchange(explained_, true)) complain(what);
    return status;
  }

  std::vector<Child> children_;
  sigset_t awaited_{};
  sigset_t before_{};
  bool explained_ = false;  ///< the first failure explains the others
};

}  // namespace

int run_local_ranks(const std::vector<std::string>& command, int ranks) {
  const auto held = hold_port();
  if (!held) return 1;
  set_job_environment(ranks, held->port);
  std::vector<std::string> words = command;
  words.emplace_back("--local-rank");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  Ranks running(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (!running.start(static_cast<std::size_t>(rank), argv)) return 1;
  }
  return running.wait();
}

}  // namespace onebit::perf
