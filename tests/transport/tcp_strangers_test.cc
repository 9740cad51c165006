// Anybody may reach a port: garbage, silence, scans, floods and wrong keys must not join, delay or break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

#include "tcp_raw_peer.h"
#include "transport/tcp/tcp.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using std::chrono::milliseconds;
using State = Endpoint::State;

struct TcpStrangers : ::testing::Test {
  TcpStrangers() : context(make(tcp_variant("", 2))) {
    auto made = context->listen(0);
    EXPECT_TRUE(made.ok());
    listener = std::move(*made);
  }
  /// A peer connects, is accepted and exchanges a message, within `limit`.
  void expect_service(milliseconds limit = std::chrono::seconds(10)) {
    auto connecting = context->connect(0, listener->handle(), {});
    ASSERT_TRUE(connecting.ok()) << connecting.status().message();
    std::unique_ptr<Endpoint> accepted;
    ASSERT_TRUE(drive(
        {context.get()},
        [&] {
          auto made = listener->accept();
          EXPECT_TRUE(made.ok()) << made.status().message();
          if (made.ok() && *made) accepted = std::move(*made);
          return accepted && (*connecting)->state() != State::kConnecting;
        },
        limit))
        << (*connecting)->status().message();
    ASSERT_EQ((*connecting)->state(), State::kReady) << (*connecting)->status().message();
    std::uint64_t value = 7;
    std::uint64_t got = 0;
    Request send;
    Request receive;
    ASSERT_TRUE(accepted->receive(receive, &got, 8, 1, 0).ok());
    ASSERT_TRUE((*connecting)->send(send, &value, 8, 1, 0).ok());
    ASSERT_TRUE(drive({context.get()}, [&] { return has_ended(receive); }));
    EXPECT_EQ(got, 7U);
  }
  void pass(milliseconds span) const {
    drive(
        {context.get()}, [] { return false; }, span);
  }

  std::unique_ptr<Context> context;
  std::unique_ptr<Listener> listener;
};

TEST_F(TcpStrangers, GarbageIsDroppedAtOnce) {
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(5000, 'x'),
                                  std::string(1, '\0'), std::string("\x16\x03\x01\x02\x00\x01\x00", 7)}) {
    const UniqueSocket fd = raw_connect(listener->handle());
    raw_send(fd.get(), text);
    EXPECT_TRUE(raw_closed(fd.get(), *context)) << text.substr(0, 10);
    expect_service();
  }
}

TEST_F(TcpStrangers, SilentAndHalfOpenConnectionsDelayNobody) {
  std::vector<UniqueSocket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(raw_connect(listener->handle()));
  for (int i = 0; i < 5; ++i) {
    silent.push_back(raw_connect(listener->handle()));
    ::shutdown(silent.back().get(), SHUT_WR);
  }
  pass(milliseconds(20));
  expect_service(milliseconds(3000));
}

TEST_F(TcpStrangers, ASilentConnectionIsDroppedAfterAFewSeconds) {
  const UniqueSocket fd = raw_connect(listener->handle());
  EXPECT_TRUE(raw_closed(fd.get(), *context));
}

TEST_F(TcpStrangers, ResetsAndClosesDuringTheHandshakeAreSurvived) {
  for (int i = 0; i < 50; ++i) {
    UniqueSocket fd = raw_connect(listener->handle());
    if (i % 3 == 0) pass(milliseconds(1));
    if (i % 2 == 0) raw_reset(fd);
  }
  expect_service();
}

TEST_F(TcpStrangers, AFloodDelaysAPeerByLessThanSeconds) {
  std::vector<UniqueSocket> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(raw_connect(listener->handle()));
  expect_service(milliseconds(4000));
}

TEST_F(TcpStrangers, AnotherKeyIsRefusedAndTheConnectorLearnsIt) {
  auto contents = decode_handle(listener->handle());
  ASSERT_TRUE(contents.ok());
  contents->key[5] ^= 1;
  auto connecting = context->connect(0, encode_handle(*contents), {});
  ASSERT_TRUE(connecting.ok());
  ASSERT_TRUE(drive({context.get()}, [&] { return (*connecting)->state() == State::kFailed; }));
  EXPECT_EQ((*connecting)->status().code(), Code::kInvalidUsage);
  EXPECT_THAT((*connecting)->status().message(), ::testing::HasSubstr((*connecting)->peer()));
  connecting->reset();
  expect_service();
}

TEST_F(TcpStrangers, AMalformedOpeningIsRefused) {
  const auto contents = decode_handle(listener->handle());
  std::vector<std::vector<std::byte>> payloads{{}, std::vector<std::byte>(13), std::vector<std::byte>(500)};
  FlowOpening opening;
  opening.index = 3;
  opening.count = 2;
  payloads.push_back(encode_opening(opening));
  for (const auto& payload : payloads) {
    const UniqueSocket fd = raw_connect(listener->handle());
    bootstrap::Handshake shake(fd.get(), bootstrap::Role::kClient, contents->key,
                               bootstrap::Purpose::kTransport, payload);
    EXPECT_TRUE(drive({context.get()}, [&] { return !shake.advance().ok(); }));
    EXPECT_TRUE(shake.refused());
  }
  expect_service();
}

TEST_F(TcpStrangers, ARefusedConnectionNamesTheAddress) {
  const Handle handle = listener->handle();
  listener.reset();
  auto connecting = context->connect(0, handle, {});
  Status status = connecting.status();
  if (connecting.ok()) {
    ASSERT_TRUE(drive({context.get()}, [&] { return (*connecting)->state() == State::kFailed; }));
    status = (*connecting)->status();
  }
  EXPECT_THAT(status.message(), ::testing::HasSubstr("connect to 127.0.0.1:"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("refused"));
}

TEST_F(TcpStrangers, AConnectThatNobodyAnswersEndsInATimeout) {
  Settings settings = test_settings();
  settings.init_timeout = milliseconds(300);
  auto other = make_tcp_context(settings, SocketAddress());
  ASSERT_TRUE(other.ok());
  auto connecting = (*other)->connect(0, listener->handle(), {});  // its listener makes no progress
  ASSERT_TRUE(connecting.ok());
  ASSERT_TRUE(drive({other->get()}, [&] { return (*connecting)->state() == State::kFailed; }));
  EXPECT_EQ((*connecting)->status().code(), Code::kTimeout);
  EXPECT_THAT((*connecting)->status().message(), ::testing::HasSubstr("ONEBIT_INIT_TIMEOUT"));
}

TEST_F(TcpStrangers, TooFewFileDescriptorsIsAnErrorThatNamesTheLimit) {
  expect_service();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const UniqueSocket peer = raw_connect(listener->handle());
  const UniqueSocket probe(::dup(0));
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(probe.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Status status;
  EXPECT_TRUE(drive({context.get()}, [&] {
    status = listener->accept().status();
    return !status.ok();
  }));
  EXPECT_EQ(context->connect(0, listener->handle(), {}).status().code(), Code::kSystemError);
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("RLIMIT_NOFILE"));
  pass(milliseconds(100));
  expect_service();
}

}  // namespace
}  // namespace onebit::transport::test
