// Strangers at every port that a job listens on while it comes together; and no port is open once it runs.

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <onebit/onebit.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/processes.h"

namespace onebit::testing {
namespace {

ONEBIT_ROLE(comes_together_and_reduces) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  rank.report("running");
  if (rank.variable("TEST_WAIT") == "yes") rank.wait_for("go");
  for (const char* tag : {"", "g"}) {
    std::vector<float> x(400'000, 1.0F);
    rank.check_ok(onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitAvg, tag, comm, nullptr),
                  "allreduce");
    rank.check(x.front() == 1.0F && x.back() == 1.0F, "a wrong sum");
  }
  rank.check_ok(onebitCommDestroy(comm), "destroy");
  rank.report("done");
}

/// The inodes of the sockets that a process has open.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* const directory = ::opendir(folder.c_str());
  if (directory == nullptr) return inodes;
  while (const dirent* entry = ::readdir(directory)) {
    char target[64];
    const ssize_t length = ::readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target);
    const std::string text(target, length > 0 ? static_cast<std::size_t>(length) : 0);
    if (text.rfind("socket:[", 0) == 0) inodes.insert(text.substr(8, text.size() - 9));
  }
  ::closedir(directory);
  return inodes;
}

/// The ports on which a process listens, IPv4 and IPv6.
std::set<int> listening_ports(pid_t pid) {
  std::set<int> ports;
  const auto own = sockets_of(pid);
  for (const char* family : {"tcp", "tcp6"}) {
    std::ifstream table("/proc/net/" + std::string(family));
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >>
          inode;
      if (state == "0A" && own.count(inode) != 0)
        ports.insert(std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

/// Connections of strangers. Silent ones stay open as long as the object.
class Strangers {
 public:
  Strangers() = default;
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  ~Strangers() {
    for (const int fd : open_) ::close(fd);
  }
  /// All kinds, one after the other. False when the port is not open.
  bool visit(int port) {
    const int silent = connect(port, "");
    if (silent < 0) return false;
    open_.push_back(silent);
    open_.push_back(connect(port, std::string(3, '\x01')));  // half a word, then silence
    connect_and_close(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false);
    connect_and_close(port, std::string(100'000, '\xFF'), false);
    connect_and_close(port, std::string(4096, '\0'), true);
    connect_and_close(port, "", true);
    connect_and_close(port, "", false);
    connect_and_close(port, "SSH-2.0-OpenSSH_9.2\r\n", true);
    return true;
  }

 private:
  /// -1 when nobody listens there (or the queue of those who wait is full).
  static int connect(int port, const std::string& text) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{0, 50'000};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd);
      return -1;
    }
    static_cast<void>(::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    return fd;
  }
  static void connect_and_close(int port, const std::string& text, bool reset) {
    const int fd = connect(port, text);
    if (fd < 0) return;
    const linger at_once{1, 0};
    if (reset) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(fd);
  }
  std::vector<int> open_;
};

TEST(Strangers, AtTheMeetingPointNeitherJoinNorDelay) {
  constexpr int kRanks = 4;
  const Environment common = local_job(kRanks);
  std::vector<std::unique_ptr<RankProcess>> processes;
  const auto start = [&](int rank) {
    processes.push_back(std::make_unique<RankProcess>("comes_together_and_reduces", rank, kRanks, common));
  };
  start(0);
  start(1);
  Strangers strangers;
  const int port = std::stoi(common.at("MASTER_PORT"));
  const double until = now() + 20;
  while (listening_ports(processes[0]->pid()).count(port) == 0 && now() < until) ::usleep(1000);
  for (int i = 0; i < 10; ++i) strangers.visit(port);
  start(2);
  for (int i = 0; i < 10; ++i) strangers.visit(port);
  const double complete = now();
  start(3);
  for (const auto& process : processes) {
    const auto running = process->await("running", 30);
    ASSERT_TRUE(running) << process->log();
    EXPECT_LT(running->at - complete, prompt()) << "strangers have delayed the job";
  }
  for (const auto& process : processes) EXPECT_EQ(process->wait().value_or(-1), 0) << process->log();
}

TEST(Strangers, AtTheDataPortsNeitherJoinNorDelay) {
  constexpr int kRanks = 5;
  // Data ports are open for a moment only, so strangers knock at all of a small range until the job runs.
  int visits = 0;
  for (int attempt = 0; attempt < 20 && visits < 10; ++attempt) {
    const int first = 30100 + ::getpid() % 20 * 100;
    Strangers strangers;
    Job job("comes_together_and_reduces", kRanks,
            {{"ONEBIT_PORT_RANGE", std::to_string(first) + "-" + std::to_string(first + 9)}});
    const double begin = now();
    std::optional<Report> done;
    while (!(done = job[0].await("done", 0)) && now() < begin + 30) {
      for (int port = first; port < first + 10; ++port) visits += strangers.visit(port) ? 1 : 0;
    }
    ASSERT_TRUE(done) << job[0].log();
    EXPECT_TRUE(job.ended_well());
  }
  EXPECT_GT(visits, 0) << "no data port was ever seen open";
  RecordProperty("visits", visits);
}

TEST(RunningJob, HasNoPortOpen) {
  Job job("comes_together_and_reduces", 4, {{"TEST_WAIT", "yes"}});
  ASSERT_TRUE(job.all_reported("running", 60));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(sockets_of(job[rank].pid()).empty()) << "this test looks in the wrong place";
    EXPECT_EQ(listening_ports(job[rank].pid()), std::set<int>()) << "rank " << rank;
  }
  job.tell_all("go");
  EXPECT_TRUE(job.ended_well());
}

}  // namespace
}  // namespace onebit::testing
