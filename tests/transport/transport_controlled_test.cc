// What holds for every transport whose connections have one of TCP beside them (verbs, UCX): strangers and
// liars on it, peers that die or fork, queues that are always full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tcp_raw_peer.h"
#include "transport/tcp/tcp.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

class TransportControlled : public ::testing::TestWithParam<ControlledVariant> {
 protected:
  static const Variant& variant() { return GetParam().variant; }
  /// A handle of TCP made one of this transport, and back.
  static Handle marked(Handle handle) {
    handle.bytes[0] ^= GetParam().mark;
    return handle;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, TransportControlled, ::testing::ValuesIn(controlled_variants()),
                         [](const auto& transport) { return transport.param.variant.name; });

/// One that could overrun a queue would.
TEST_P(TransportControlled, TheSmallestQueuesCarryEverythingBothWays) {
  Variant smallest = variant();
  smallest.make = GetParam().make_smallest;
  Pair pair(smallest);
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kCount = 120;
  std::mt19937 random(5);
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received(kCount, std::vector<std::byte>(5000));
  std::vector<Request> sends(kCount);
  std::vector<Request> receives(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    sent.push_back(
        pattern(random() % 2 == 0 ? random() % 72 : random() % 5000, static_cast<std::uint32_t>(i)));
    Endpoint& from = i % 2 == 0 ? *pair.a : *pair.b;
    Endpoint& to = i % 2 == 0 ? *pair.b : *pair.a;
    ASSERT_TRUE(from.send(sends[i], sent[i].data(), sent[i].size(), i, 0).ok());
    ASSERT_TRUE(to.receive(receives[i], received[i].data(), received[i].size(), i, 0).ok());
  }
  ASSERT_TRUE(pair.drive([&] {
    return std::all_of(sends.begin(), sends.end(), has_ended) &&
           std::all_of(receives.begin(), receives.end(), has_ended);
  }));
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(is_done(sends[i]) && is_done(receives[i]))
        << i << pair.a->status().message() << pair.b->status().message();
    received[i].resize(receives[i].bytes);
    EXPECT_EQ(received[i], sent[i]) << i;
  }
}

TEST_P(TransportControlled, AStrangerOnTheExchangePortDisturbsNobody) {
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

TEST_P(TransportControlled, APeerThatNeverAnswersIsAnErrorThatNamesItAndTheSetting) {
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
TEST_P(TransportControlled, APeerThatIntroducesItselfWithGarbageFailsAndIsNamed) {
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

TEST_P(TransportControlled, AHandleOfAnotherTransportIsRefused) {
  const auto own = make(variant());
  auto of_own = own->listen(0);
  ASSERT_TRUE(of_own.ok());
  auto tcp = make_tcp_context(test_settings(), SocketAddress());
  ASSERT_TRUE(tcp.ok());
  auto of_tcp = (*tcp)->listen(0);
  ASSERT_TRUE(of_tcp.ok());
  EXPECT_EQ(own->connect(0, (*of_tcp)->handle(), {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*tcp)->connect(0, (*of_own)->handle(), {}).status().code(), Code::kInvalidArgument);
}

TEST_P(TransportControlled, AChildThatDestroysWhatItInheritedLeavesTheConnectionAlone) {
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

TEST_P(TransportControlled, AKilledPeerEndsAllRequestsAndIsNamed) {
  const std::vector<std::byte> sent(GetParam().slow_bytes);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    make(variant()).reset();  // the next one is on the other device, where there are two
    const auto context = make(variant());
    auto listener = context->listen(0);
    const Handle handle = (*listener)->handle();
    if (::write(ends[1], handle.bytes.data(), handle.bytes.size()) < 0) ::_exit(1);
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> memory(sent.size());
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

}  // namespace
}  // namespace onebit::transport::test
