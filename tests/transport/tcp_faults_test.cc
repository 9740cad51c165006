// Peers that die, stop or fork, and links that go dead: real processes, real signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>

#include "support/child.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using onebit::testing::Child;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A listener here, whose handle a child knows; the child connects and then does as it is told.
struct TcpFaults : ::testing::Test {
  explicit TcpFaults(const Variant& v = tcp_variant("", 2)) : variant(v), context(make(variant)) {
    auto made = context->listen(0);
    EXPECT_TRUE(made.ok());
    listener = std::move(*made);
  }
  using Body = std::function<int(Context&, Endpoint&)>;
  std::unique_ptr<Child> connect_child(const Body& body) {
    const Handle handle = listener->handle();
    auto child = std::make_unique<Child>([&] {
      auto own = make(variant);
      auto endpoint = own->connect(0, handle, {});
      if (!endpoint.ok()) return 90;
      if (!drive({own.get()}, [&] { return (*endpoint)->state() != State::kConnecting; })) return 91;
      if ((*endpoint)->state() != State::kReady) return 92;
      return body(*own, **endpoint);
    });
    EXPECT_TRUE(drive({context.get()}, [&] {
      auto accepted = listener->accept();
      if (accepted.ok() && *accepted) peer = std::move(*accepted);
      return peer != nullptr;
    }));
    return child;
  }
  bool fails_within(milliseconds limit) const {
    return drive(
        {context.get()}, [&] { return peer->state() == State::kFailed; }, limit);
  }
  static int idle(Context& own, Endpoint& endpoint) {
    drive({&own}, [&] { return endpoint.state() != State::kReady; });
    return 0;
  }

  Variant variant;
  std::unique_ptr<Context> context;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Endpoint> peer;
};

TEST_F(TcpFaults, APeerKilledWhenIdleIsNoticed) {
  auto child = connect_child(idle);
  Request receive;
  std::uint64_t value = 0;
  ASSERT_TRUE(peer->receive(receive, &value, 8, 1, 0).ok());
  child->signal(SIGKILL);
  ASSERT_TRUE(fails_within(seconds(2)));
  EXPECT_TRUE(is_failed(receive));
  EXPECT_EQ(peer->status().code(), Code::kRemoteError);
  EXPECT_THAT(peer->status().message(), ::testing::StartsWith("127.0.0.1:"));
  EXPECT_THAT(peer->status().message(), ::testing::HasSubstr("closed the connection (the process ended?)"));
  EXPECT_EQ(context->failed(), peer.get());
}

TEST_F(TcpFaults, APeerKilledWhileItSendsIsNoticed) {
  const auto sent = pattern(64UL << 20, 1);
  auto child = connect_child([&](Context& own, Endpoint& endpoint) {
    Request request;
    if (!endpoint.send(request, sent.data(), sent.size(), 1, 0).ok()) return 1;
    return idle(own, endpoint);
  });
  std::vector<std::byte> received(sent.size());
  Request receive;
  ASSERT_TRUE(peer->receive(receive, received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(drive({context.get()}, [&] { return peer->counters().payload_received > 1 << 20; }));
  child->signal(SIGKILL);
  ASSERT_TRUE(fails_within(seconds(2)));
  EXPECT_TRUE(is_failed(receive));
}

TEST_F(TcpFaults, APeerKilledWhileItReceivesIsNoticed) {
  auto child = connect_child([](Context& own, Endpoint& endpoint) { return idle(own, endpoint); });
  const auto sent = pattern(64UL << 20, 1);
  Request send;
  ASSERT_TRUE(peer->send(send, sent.data(), sent.size(), 1, 0).ok());
  EXPECT_FALSE(fails_within(milliseconds(100)));
  child->signal(SIGKILL);
  ASSERT_TRUE(fails_within(seconds(2)));
  EXPECT_TRUE(is_failed(send));
  EXPECT_THAT(peer->status().message(), ::testing::HasSubstr("closed the connection"));
}

TEST_F(TcpFaults, APeerKilledBehindUnreadMessagesIsNoticed) {
  const auto sent = pattern(100'000, 1);
  auto child = connect_child([&](Context& own, Endpoint& endpoint) {
    std::array<Request, 10> requests;
    for (Request& request : requests) {
      if (!endpoint.send(request, sent.data(), sent.size(), 1, 0).ok()) return 1;
    }
    return idle(own, endpoint);
  });
  EXPECT_FALSE(fails_within(milliseconds(100)));
  child->signal(SIGKILL);
  ASSERT_TRUE(fails_within(seconds(2)));
  EXPECT_THAT(peer->status().message(), ::testing::HasSubstr("closed the connection"));
}

TEST_F(TcpFaults, AReasonBehindUnreadMessagesArrives) {
  const auto sent = pattern(5000, 1);
  auto child = connect_child([&](Context&, Endpoint& endpoint) {
    std::array<Request, 10> requests;
    for (Request& request : requests) {
      if (!endpoint.send(request, sent.data(), sent.size(), 1, 0).ok()) return 1;
    }
    endpoint.abort(Status(Code::kAborted, "rank 5 has lost its disk"));
    return 0;
  });
  ASSERT_TRUE(fails_within(seconds(2)));
  EXPECT_THAT(peer->status().message(), ::testing::HasSubstr("rank 5 has lost its disk"));
}

struct TcpShortLinkTimeout : TcpFaults {
  TcpShortLinkTimeout()
      : TcpFaults(tcp_variant("", 2, [](Settings& s) { s.link_timeout = milliseconds(1000); })) {}
};

TEST_F(TcpShortLinkTimeout, AStoppedPeerWithAFullWindowStaysConnected) {
  const auto sent = pattern(64UL << 20, 1);
  auto child = connect_child([&](Context& own, Endpoint& endpoint) {
    std::vector<std::byte> received(sent.size());
    Request receive;
    if (!endpoint.receive(receive, received.data(), received.size(), 1, 0).ok()) return 1;
    if (!drive({&own}, [&] { return has_ended(receive); })) return 2;
    endpoint.finish();
    if (!drive({&own}, [&] { return endpoint.closed(); })) return 3;
    return is_done(receive) && received == sent ? 0 : 4;
  });
  child->signal(SIGSTOP);
  Request send;
  ASSERT_TRUE(peer->send(send, sent.data(), sent.size(), 1, 0).ok());
  EXPECT_FALSE(fails_within(milliseconds(5000))) << peer->status().message();
  EXPECT_FALSE(has_ended(send));
  child->signal(SIGCONT);
  ASSERT_TRUE(drive({context.get()}, [&] { return peer->state() == State::kFinished; }));
  EXPECT_TRUE(is_done(send));
  EXPECT_EQ(child->wait(), 0);
}

TEST_F(TcpFaults, AForkedChildMayDestroyEverythingWithoutHarm) {
  Pair pair(variant);
  ASSERT_TRUE(pair.connected());
  auto half_open = pair.context_a->connect(0, pair.listener->handle(), {});
  ASSERT_TRUE(half_open.ok());
  const auto sent = pattern(8UL << 20, 3);
  std::vector<std::byte> received(sent.size());
  std::array<Request, 2> requests;
  ASSERT_TRUE(pair.a->send(requests[0], sent.data(), sent.size(), 1, 0).ok());
  Child child([&] {
    pair.a->abort(Status(Code::kAborted, "in the child"));
    pair.b.reset();
    half_open->reset();
    pair.listener.reset();
    pair.context_a.reset();
    pair.a.reset();
    pair.context_b.reset();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  ASSERT_TRUE(pair.b->receive(requests[1], received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(requests[0]) && has_ended(requests[1]); }));
  EXPECT_TRUE(is_done(requests[0]) && is_done(requests[1])) << pair.b->status().message();
  EXPECT_EQ(received, sent);
  // A child that goes on living holds the sockets, but does not keep the peer from seeing the end.
  Child sleeper([] {
    ::pause();
    return 0;
  });
  pair.a.reset();
  EXPECT_TRUE(pair.drive([&] { return pair.b->state() == State::kFailed; }, seconds(2)));
}

TEST(TcpLimits, AProcessWith64FileDescriptorsGetsAnErrorAndWhatItHasGoesOn) {
  Child child([] {
    const rlimit low{64, 64};
    if (setrlimit(RLIMIT_NOFILE, &low) != 0) return 1;
    Pair pair(tcp_variant("", 2));
    if (!pair.connected()) return 2;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    Status status;
    for (int i = 0; i < 64 && status.ok(); ++i) {
      auto made = pair.context_a->connect(0, pair.listener->handle(), {});
      status = made.status();
      if (made.ok()) endpoints.push_back(std::move(*made));
      for (int k = 0; k < 5; ++k) {
        if (!progress(*pair.context_a).ok() || !progress(*pair.context_b).ok()) return 3;
        auto accepted = pair.listener->accept();
        if (!accepted.ok()) status = accepted.status();
        if (accepted.ok() && *accepted) endpoints.push_back(std::move(*accepted));
      }
    }
    if (status.ok() || status.message().find("RLIMIT_NOFILE") == std::string::npos) return 4;
    std::uint64_t value = 9;
    std::uint64_t got = 0;
    std::array<Request, 2> requests;
    if (!pair.a->send(requests[0], &value, 8, 1, 0).ok()) return 5;
    if (!pair.b->receive(requests[1], &got, 8, 1, 0).ok()) return 6;
    if (!pair.drive([&] { return has_ended(requests[1]); })) return 7;
    return got == 9 ? 0 : 8;
  });
  EXPECT_EQ(child.wait(), 0);
}

bool set_loopback(bool up) {
  const UniqueSocket fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

TEST(TcpDeadLink, ALinkThatGoesDeadUnderUnacknowledgedBytesIsAnErrorInTime) {
  constexpr int kNoNamespace = 77;
  Child child([] {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return kNoNamespace;
    if (!set_loopback(true)) return 1;
    Pair pair(tcp_variant("", 2, [](Settings& s) { s.link_timeout = milliseconds(1500); }));
    if (!pair.connected()) return 2;
    std::array<std::byte, 1000> bytes{};
    Request send;
    Request receive;
    if (!set_loopback(false)) return 3;
    if (!pair.b->receive(receive, bytes.data(), bytes.size(), 1, 0).ok()) return 4;
    if (!pair.a->send(send, bytes.data(), bytes.size(), 1, 0).ok()) return 5;
    const auto start = std::chrono::steady_clock::now();
    if (!pair.drive([&] { return pair.a->state() == State::kFailed; }, seconds(10))) return 6;
    if (std::chrono::steady_clock::now() - start < milliseconds(1400)) return 7;
    if (pair.a->status().code() != Code::kRemoteError) return 8;
    return pair.a->status().message().find("machine is down?") != std::string::npos ? 0 : 9;
  });
  const int result = child.wait();
  if (result == kNoNamespace) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace onebit::transport::test
