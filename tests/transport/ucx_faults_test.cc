// What is UCX's own in connections: its window, its ways to the peer, strangers, processes that die or fork.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>

#include "tcp_raw_peer.h"
#include "transport/controlled_wire.h"
#include "transport/factory.h"
#include "transport/tcp/tcp.h"
#include "transport/ucx/ucx.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr const char* kTcp = "tcp,self";
constexpr const char* kSharedMemory = "shm,self";

/// A handle of TCP made one of UCX, and back.
Handle marked(Handle handle) {
  handle.bytes[0] ^= std::byte{0xC0};
  return handle;
}

/// A message goes from one end to the other.
void expect_exchange(Pair& pair, std::size_t bytes = 100'000) {
  const auto sent = pattern(bytes, 3);
  std::vector<std::byte> received(sent.size());
  Request send;
  Request receive;
  ASSERT_TRUE(pair.b->receive(receive, received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->send(send, sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
  ASSERT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message() << pair.b->status().message();
  EXPECT_EQ(received, sent);
}

class UcxFaults : public testing::TestWithParam<const char*> {
 protected:
  static Variant variant() { return ucx_variant("", GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Networks, UcxFaults, testing::Values(kTcp, kSharedMemory), [](const auto& networks) {
  return std::string(networks.param == kTcp ? "tcp" : "shared_memory");
});

TEST_P(UcxFaults, WindowsOfOneSegmentCarryEverythingBothWays) {
  const UcxWindow tiny{1, 1000};
  const auto made = [&] {
    ::setenv("UCX_TLS", GetParam(), 1);
    const Settings settings = test_settings();
    auto context = make_ucx_context(settings, *ucx_devices(settings, SocketAddress()), tiny);
    EXPECT_TRUE(context.ok()) << context.status().message();
    return std::move(*context);
  };
  const auto context_a = made();
  const auto context_b = made();
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  auto a = context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(a.ok());
  std::unique_ptr<Endpoint> b;
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    auto accepted = (*listener)->accept();
    if (accepted.ok() && *accepted) b = std::move(*accepted);
    return b && (*a)->state() == State::kReady;
  }));
  constexpr std::size_t kCount = 120;
  std::mt19937 random(5);
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received(kCount, std::vector<std::byte>(5000));
  std::vector<Request> sends(kCount);
  std::vector<Request> receives(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    sent.push_back(
        pattern(random() % 2 == 0 ? random() % 72 : random() % 5000, static_cast<std::uint32_t>(i)));
    Endpoint& from = i % 2 == 0 ? **a : *b;
    Endpoint& to = i % 2 == 0 ? *b : **a;
    ASSERT_TRUE(from.send(sends[i], sent[i].data(), sent[i].size(), i, 0).ok());
    ASSERT_TRUE(to.receive(receives[i], received[i].data(), received[i].size(), i, 0).ok());
  }
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    return std::all_of(sends.begin(), sends.end(), has_ended) &&
           std::all_of(receives.begin(), receives.end(), has_ended);
  }));
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(is_done(sends[i]) && is_done(receives[i]))
        << i << (*a)->status().message() << b->status().message();
    received[i].resize(receives[i].bytes);
    EXPECT_EQ(received[i], sent[i]) << i;
  }
}

/// All by UCX's eager protocol, then all by rendezvous: what the job says is respected.
TEST_P(UcxFaults, CarriesMessagesWhateverThresholdTheJobSets) {
  for (const char* const threshold : {"inf", "0"}) {
    SCOPED_TRACE(threshold);
    ::setenv("UCX_RNDV_THRESH", threshold, 1);
    Pair pair(variant());
    ::unsetenv("UCX_RNDV_THRESH");
    ASSERT_TRUE(pair.connected());
    for (const std::size_t bytes : {0UL, 1UL, 8UL, 5000UL, 3UL << 20}) expect_exchange(pair, bytes);
  }
}

TEST_P(UcxFaults, AStrangerOnTheExchangePortDisturbsNobody) {
  const auto context_b = make(variant());
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  const UniqueSocket silent = raw_connect(marked((*listener)->handle()));
  const UniqueSocket loud = raw_connect(marked((*listener)->handle()));
  const auto garbage = pattern(1000, 1);
  ASSERT_GT(::send(loud.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  const auto context_a = make(variant());
  auto connecting = context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(connecting.ok());
  std::unique_ptr<Endpoint> accepted;
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    auto made = (*listener)->accept();
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok() && *made) accepted = std::move(*made);
    return accepted && (*connecting)->state() == State::kReady;
  }));
}

TEST_P(UcxFaults, APeerThatNeverAnswersIsAnErrorThatNamesItAndTheSetting) {
  const auto context_b = make(variant());
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  Variant impatient = variant();
  impatient.settings.init_timeout = milliseconds(300);
  const auto context_a = make(impatient);
  auto connecting = context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(connecting.ok());
  ASSERT_TRUE(drive({context_a.get(), context_b.get()},  // nobody accepts
                    [&] { return (*connecting)->state() == State::kFailed; }));
  EXPECT_EQ((*connecting)->status().code(), Code::kTimeout);
  EXPECT_THAT((*connecting)->status().message(),
              AllOf(HasSubstr((*connecting)->peer()), HasSubstr("ONEBIT_INIT_TIMEOUT")));
}

/// A peer of ours by its handshake, which then says something else than it should.
TEST_P(UcxFaults, APeerThatIntroducesItselfWithGarbageFailsAndIsNamed) {
  auto control = make_tcp_context(test_settings(), SocketAddress(), 1);
  ASSERT_TRUE(control.ok());
  auto listener = (*control)->listen(0);
  ASSERT_TRUE(listener.ok());
  const auto context = make(variant());
  auto endpoint = context->connect(0, marked((*listener)->handle()), {});
  ASSERT_TRUE(endpoint.ok());
  std::unique_ptr<Endpoint> peer;
  Request said;
  const auto garbage = pattern(100, 1);
  ASSERT_TRUE(drive({context.get(), control->get()}, [&] {
    auto accepted = (*listener)->accept();
    if (accepted.ok() && *accepted) {
      peer = std::move(*accepted);
      EXPECT_TRUE(peer->send(said, garbage.data(), garbage.size(), 1, 0).ok());
    }
    return (*endpoint)->state() == State::kFailed;
  }));
  EXPECT_EQ((*endpoint)->status().code(), Code::kDataError);
  EXPECT_THAT((*endpoint)->status().message(), HasSubstr((*endpoint)->peer()));
}

TEST_P(UcxFaults, AHandleOfAnotherTransportIsRefused) {
  const auto ucx = make(variant());
  auto of_ucx = ucx->listen(0);
  ASSERT_TRUE(of_ucx.ok());
  auto tcp = make_tcp_context(test_settings(), SocketAddress());
  ASSERT_TRUE(tcp.ok());
  auto of_tcp = (*tcp)->listen(0);
  ASSERT_TRUE(of_tcp.ok());
  EXPECT_EQ(ucx->connect(0, (*of_tcp)->handle(), {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*tcp)->connect(0, (*of_ucx)->handle(), {}).status().code(), Code::kInvalidArgument);
}

TEST_P(UcxFaults, ConnectionsThatComeAndGoUseTheSameWorkersAgain) {
  const auto context_a = make(variant());
  const auto context_b = make(variant());
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    auto a = context_a->connect(0, (*listener)->handle(), {});
    ASSERT_TRUE(a.ok()) << a.status().message();
    std::unique_ptr<Endpoint> b;
    ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
      auto accepted = (*listener)->accept();
      EXPECT_TRUE(accepted.ok()) << accepted.status().message();
      if (accepted.ok() && *accepted) b = std::move(*accepted);
      return b && (*a)->state() != State::kConnecting;
    })) << (*a)->status().message();
    const std::uint64_t value = 5;
    std::uint64_t got = 0;
    Request send;
    Request receive;
    ASSERT_TRUE((*a)->send(send, &value, sizeof value, 1, 0).ok()) << (*a)->status().message();
    ASSERT_TRUE(b->receive(receive, &got, sizeof got, 1, 0).ok());
    ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] { return has_ended(receive); }));
    ASSERT_TRUE(is_done(receive)) << b->status().message();
    if (round % 3 == 0) (*a)->abort(Status(Code::kAborted, "enough"));
    if (round % 3 == 1) b.reset();
  }
}

TEST_P(UcxFaults, AChildThatDestroysWhatItInheritedLeavesTheConnectionAlone) {
  Pair pair(variant());
  ASSERT_TRUE(pair.connected());
  expect_exchange(pair);
  const pid_t child = ::fork();
  if (child == 0) {
    pair.a.reset();
    pair.b.reset();
    pair.listener.reset();
    pair.context_a.reset();
    pair.context_b.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  expect_exchange(pair);
}

TEST_P(UcxFaults, AChildOfAProcessThatUsesUcxIsToldThatItCannot) {
  const auto context = make(variant());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = variant().make(variant().settings);
    ::_exit(!made.ok() && made.status().code() == Code::kInvalidUsage ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_P(UcxFaults, AKilledPeerEndsAllRequestsAndIsNamed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto context = make(variant());
    auto listener = context->listen(0);
    const Handle handle = (*listener)->handle();
    if (::write(ends[1], handle.bytes.data(), handle.bytes.size()) < 0) ::_exit(1);
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> memory(1UL << 30);
    Request receive;
    for (;;) {
      if (endpoint == nullptr) {
        auto accepted = (*listener)->accept();
        if (accepted.ok() && *accepted) {
          endpoint = std::move(*accepted);
          static_cast<void>(endpoint->receive(receive, memory.data(), memory.size(), 1, 0));
        }
      }
      static_cast<void>(progress(*context, milliseconds(10)));
    }
  }
  Handle handle;
  ASSERT_EQ(::read(ends[0], handle.bytes.data(), handle.bytes.size()), static_cast<ssize_t>(sizeof handle));
  const auto context = make(variant());
  auto endpoint = context->connect(0, handle, {});
  ASSERT_TRUE(endpoint.ok());
  ASSERT_TRUE(drive({context.get()}, [&] { return (*endpoint)->state() == State::kReady; }));
  const std::vector<std::byte> sent(1UL << 30);
  std::array<Request, 3> requests;
  std::array<std::byte, 8> bytes{};
  ASSERT_TRUE((*endpoint)->send(requests[0], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->send(requests[1], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->receive(requests[2], bytes.data(), bytes.size(), 1, 0).ok());
  ASSERT_TRUE(drive({context.get()}, [&] { return (*endpoint)->counters().payload_sent > 2'000'000; }));
  ::kill(child, SIGKILL);
  ASSERT_TRUE(
      drive({context.get()}, [&] { return std::all_of(requests.begin(), requests.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_failed));
  EXPECT_EQ((*endpoint)->status().code(), Code::kRemoteError);
  EXPECT_THAT((*endpoint)->status().message(), HasSubstr((*endpoint)->peer()));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(UcxFaults, SleepsUntilAMessageOrAWakeComes) {
  Pair pair(variant());
  ASSERT_TRUE(pair.connected());
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    pair.context_b->wake();
  });
  EXPECT_TRUE(progress(*pair.context_b, seconds(20)).ok());
  other.join();
  Request send;
  Request receive;
  std::uint64_t value = 1;
  std::uint64_t got = 0;
  ASSERT_TRUE(pair.b->receive(receive, &got, sizeof got, 1, 0).ok());
  std::thread sender([&] {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(pair.a->send(send, &value, sizeof value, 1, 0).ok());
    for (int turn = 0; turn < 100 && !has_ended(send); ++turn) {
      EXPECT_TRUE(progress(*pair.context_a, milliseconds(10)).ok());
    }
  });
  for (int turn = 0; turn < 100 && !has_ended(receive); ++turn) {
    EXPECT_TRUE(progress(*pair.context_b, seconds(20)).ok());
  }
  sender.join();
  EXPECT_TRUE(is_done(receive));
  EXPECT_EQ(got, 1U);
}

TEST(UcxNetworks, NoneThatReachesThePeerIsAnErrorThatSaysWhatWasChosen) {
  const Variant variant = ucx_variant("", "self");  // a worker reaches only itself
  const auto context_a = make(variant);
  const auto context_b = make(variant);
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  auto connecting = context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(connecting.ok());
  std::unique_ptr<Endpoint> accepted;
  testing::internal::CaptureStdout();
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    auto made = (*listener)->accept();
    if (made.ok() && *made) accepted = std::move(*made);
    return (*connecting)->state() == State::kFailed;
  }));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "UCX's messages go to the log";
  EXPECT_THAT((*connecting)->status().message(),
              AllOf(HasSubstr((*connecting)->peer()), HasSubstr("UCX_TLS=self")));
}

}  // namespace
}  // namespace onebit::transport::test
