// Strangers, aborts, limits, signals and forks: nothing hangs, leaks, crashes or reaches the wrong peer.
#include <gmock/gmock.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "net_pair.h"
#include "support/child.h"
#include "tcp_raw_peer.h"

namespace onebit::nccl_net::test {
namespace {

using onebit::testing::Child;

using Handle = std::array<std::byte, abi::kHandleBytes>;
using transport::test::raw_connect;
using transport::test::raw_reset;
using transport::test::raw_send;

/// 0 when a message goes through.
int exchange(const Connection& line) {
  const auto sent = pattern(70'001, 5);
  std::vector<std::byte> got(sent.size());
  if (!line.made()) return 1;
  void* const receive = line.receive(got.data(), got.size());
  void* const send = line.send(sent.data(), sent.size());
  if (receive == nullptr || send == nullptr) return 2;
  Pending sending(line.net, send), receiving(line.net, receive);
  if (!complete({&sending, &receiving})) return 3;
  return got == sent ? 0 : 4;
}

struct Faults : EachVersion {};
ONEBIT_EACH_VERSION(Faults);
struct FaultsWithFinalize : EachVersion {};
ONEBIT_VERSIONS(FaultsWithFinalize, 11, 12);
struct FaultsWithoutFinalize : EachVersion {};
ONEBIT_VERSIONS(FaultsWithoutFinalize, 6, 10);

// Before the tests that leave thousands of ports in TIME_WAIT, among which the kernel then looks for free
// ones for long.
TEST_P(FaultsWithFinalize, AThousandAbortsInTheMiddleOfSetUpLeaveNoDescriptorAndNoMemory) {
  const auto round = [&] {
    const Communicator a(net), b(net);
    Handle handle{};
    void *listening = nullptr, *send = nullptr, *receive = nullptr;
    ASSERT_EQ(net.listen(b.ctx(), 0, handle.data(), &listening), Result::kSuccess);
    ASSERT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
    ASSERT_EQ(net.accept(listening, &receive), Result::kSuccess);
    ASSERT_EQ(send, nullptr);
    ASSERT_EQ(receive, nullptr);
  };
  for (int i = 0; i < 20; ++i) round();
  take_log();
  const std::size_t descriptors = open_descriptors();
  const std::size_t bytes = mallinfo2().uordblks;
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_LT(mallinfo2().uordblks, bytes + 128 * 1024) << "the log of this test is a part of it";
}

TEST_P(Faults, StrangersBeforeAndDuringAcceptDelayNobody) {
  const Communicator a(net), b(net);
  Handle handle{};
  void *listening = nullptr, *send = nullptr, *receive = nullptr;
  ASSERT_EQ(net.listen(b.ctx(), 0, handle.data(), &listening), Result::kSuccess);
  transport::Handle where;
  std::memcpy(&where, handle.data(), sizeof where);
  std::vector<UniqueSocket> strangers;
  const auto come = [&] {
    strangers.push_back(raw_connect(where));  // silent
    strangers.push_back(raw_connect(where));
    raw_send(strangers.back().get(), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    strangers.push_back(raw_connect(where));
    raw_send(strangers.back().get(), std::string(3000, '\0'));
    strangers.push_back(raw_connect(where));
    ::shutdown(strangers.back().get(), SHUT_WR);
    UniqueSocket reset = raw_connect(where);
    raw_reset(reset);
    raw_connect(where);  // closed at once
  };
  come();
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(net.accept(listening, &receive), Result::kSuccess) << take_log();
    ASSERT_EQ(receive, nullptr) << "a stranger was taken for the peer";
    if (i % 20 == 0) come();
  }
  ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive, std::chrono::seconds(10)));
  come();
  net.close_listen(listening);
  net.close_send(send);
  net.close_receive(receive);
}

TEST_P(Faults, StrangersAfterAcceptDoNotDisturbTheConnection) {
  const Communicator a(net), b(net);
  Handle handle{};
  void* listening = nullptr;
  ASSERT_EQ(net.listen(b.ctx(), 0, handle.data(), &listening), Result::kSuccess);
  transport::Handle where;
  std::memcpy(&where, handle.data(), sizeof where);
  const Connection line(a, b);
  std::vector<UniqueSocket> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(raw_connect(where));
    void* receive = nullptr;
    ASSERT_EQ(net.accept(listening, &receive), Result::kSuccess);
    ASSERT_EQ(receive, nullptr);
    ASSERT_EQ(exchange(line), 0);
  }
  net.close_listen(listening);
}

TEST_P(Faults, AStormOfSignalsChangesNothing) {
  struct sigaction storm {};
  storm.sa_handler = [](int) {};  // without SA_RESTART: calls are interrupted
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGALRM, &storm, &before), 0);
  const itimerval every{{0, 1000}, {0, 1000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &every, nullptr), 0);
  {
    const Communicator a(net), b(net);
    for (int i = 0; i < 10; ++i) {
      const Connection line(a, b);
      for (int j = 0; j < 20; ++j) EXPECT_EQ(exchange(line), 0);
    }
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST_P(Faults, AHundredInitsAndFinalizesLeaveNothing) {
  { const Communicator first(net); }
  const std::size_t descriptors = open_descriptors();
  for (int i = 0; i < 100; ++i) {
    const Communicator a(net);
    int count = 0;
    EXPECT_EQ(net.devices(count), Result::kSuccess);
    EXPECT_EQ(count, 1);
  }
  EXPECT_LE(open_descriptors(), descriptors);
}

TEST_P(FaultsWithoutFinalize, ConnectsThatWereAbortedEndWhenOthersBeginLater) {
  Child child([&] {
    ::setenv("ONEBIT_INIT_TIMEOUT", "300ms", 1);
    const Communicator a(net), b(net);
    Handle handle{};
    void *listening = nullptr, *send = nullptr;
    if (net.listen(b.ctx(), 0, handle.data(), &listening) != Result::kSuccess) return 1;
    const std::size_t descriptors = open_descriptors();
    for (int i = 0; i < 100; ++i) {
      Handle copy = handle;
      if (net.connect(a.ctx(), 0, copy.data(), &send) != Result::kSuccess || send != nullptr) return 2;
    }
    if (open_descriptors() < descriptors + 100) return 3;
    const bool ended = until([&] {  // an aborted connect of its own, each time
      Handle copy = handle;
      if (net.connect(a.ctx(), 0, copy.data(), &send) != Result::kSuccess || send != nullptr) return true;
      ::usleep(20'000);
      return open_descriptors() < descriptors + 100;
    });
    return ended && send == nullptr && open_descriptors() < descriptors + 100 ? 0 : 4;
  });
  EXPECT_EQ(child.wait(), 0) << take_log();
}

// Ten of each listener: closed connections leave ports in TIME_WAIT, and among thousands of those the kernel
// looks long for a free one to listen on.
TEST_P(Faults, ConnectionsThatAreMadeAndClosedAThousandTimesLeaveNothing) {
  const Communicator a(net), b(net);
  const auto ten = [&] {
    Handle handle{};
    void* listening = nullptr;
    ASSERT_EQ(net.listen(b.ctx(), 0, handle.data(), &listening), Result::kSuccess) << take_log();
    for (int i = 0; i < 10; ++i) {
      void *send = nullptr, *receive = nullptr;
      ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive));
      net.close_send(send);
      net.close_receive(receive);
    }
    net.close_listen(listening);
  };
  { const Connection first(a, b); }
  std::size_t descriptors = 0;
  // Those that were closed last may still be on their way: whatever call comes next looks after them.
  ASSERT_TRUE(until([&] {
    { const Connection next(a, b); }
    const std::size_t before = std::exchange(descriptors, open_descriptors());
    return descriptors == before;
  }));
  for (int i = 0; i < 100 && !HasFailure(); ++i) ten();
  EXPECT_TRUE(until([&] {
    { const Connection next(a, b); }
    return open_descriptors() <= descriptors;
  }));
}

TEST_P(Faults, ALimitOf64DescriptorsIsAnErrorThatNamesItAndPasses) {
  Child child([&] {
    const rlimit low{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return 10;
    const Communicator a(net), b(net);
    std::vector<std::unique_ptr<Connection>> lines;
    std::vector<void*> listeners;
    Result result = Result::kSuccess;
    for (int i = 0; i < 100 && result == Result::kSuccess; ++i) {
      Handle handle{};
      void* listening = nullptr;
      result = net.listen(b.ctx(), 0, handle.data(), &listening);
      if (listening != nullptr) listeners.push_back(listening);
    }
    if (result != Result::kSystemError) return 11;
    if (take_log().find("Too many open files") == std::string::npos) return 12;
    for (void* listening : listeners) net.close_listen(listening);
    return exchange(Connection(a, b));
  });
  EXPECT_EQ(child.wait(), 0) << take_log();
}

TEST_P(Faults, TheSoftLimitOfDescriptorsIsRaised) {
  Child child([&] {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 10;
    limit.rlim_cur = 100;
    if (limit.rlim_max <= 100 || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 11;
    const Communicator a(net);
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 12;
    return limit.rlim_cur == limit.rlim_max ? 0 : 13;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(Faults, AForkedChildIsRefusedTheConnectionsOfItsParentAndDoesNotDisturbThem) {
  const Communicator a(net), b(net);
  const Connection line(a, b);
  ASSERT_EQ(exchange(line), 0);
  int value = 0;
  Pending posted(net, line.receive(&value, sizeof value));
  Child child([&] {
    void* request = nullptr;
    if (net.isend(line.sender(), &value, sizeof value, 0, nullptr, &request) == Result::kSuccess) return 20;
    int done = 0;
    if (net.test(posted.request, &done, nullptr) == Result::kSuccess) return 21;
    Handle handle{};
    void* listening = nullptr;
    if (net.listen(a.ctx(), 0, handle.data(), &listening) == Result::kSuccess) return 22;
    net.close_send(line.sender());
    net.close_receive(line.receiver());
    // And it can have some of its own.
    const Communicator c(net), d(net);
    return exchange(Connection(c, d));
  });
  EXPECT_EQ(child.wait(), 0);
  const int sent = 17;
  Pending sending(net, line.send(&sent, sizeof sent));
  ASSERT_TRUE(complete({&sending, &posted}));
  EXPECT_EQ(value, 17);
}

}  // namespace
}  // namespace onebit::nccl_net::test
