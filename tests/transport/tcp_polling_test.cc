// A receiver that polls for small messages, which are peeked at before they are taken from the socket: none
// is lost, doubled or mixed up, and whatever else the peer does is noticed behind them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tcp_raw_peer.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;

class TcpPolling : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  Pair pair{tcp_variant("", GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Flows, TcpPolling, ::testing::Values(1U, 3U));

TEST_P(TcpPolling, SmallMessagesBetweenLargerOnesArriveWholeAndInOrder) {
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kMessages = 4000;
  constexpr std::size_t kDepth = 12;
  // Around what is small, what is peeked at, what is staged, and what is a segment of its own.
  constexpr std::array<std::size_t, 16> kSizes{8,    0, 8,     2007, 2008, 2009, 8,      1,
                                               4100, 8, 16345, 8,    64,   8,    70'001, 512};
  const auto size_of = [&](std::size_t i) { return i < kMessages / 2 ? kSizes[i % kSizes.size()] : i % 97; };
  struct Message {
    std::vector<std::byte> bytes;
    Request request;
  };
  std::deque<Message> sends, receives;
  std::size_t sent = 0, posted = 0, arrived = 0;
  ASSERT_TRUE(pair.drive([&] {
    while (posted < kMessages && receives.size() < kDepth) {
      Message& message = receives.emplace_back();
      message.bytes.resize(size_of(posted));
      EXPECT_TRUE(pair.b->receive(message.request, message.bytes.data(), message.bytes.size(), 1, 0).ok());
      ++posted;
    }
    // In bursts of 1 to 7, so that peeks find one message or several.
    const std::size_t burst = 1 + arrived % 7;
    while (sent < kMessages && sent < arrived + burst) {
      Message& message = sends.emplace_back();
      message.bytes = pattern(size_of(sent), static_cast<std::uint32_t>(sent));
      EXPECT_TRUE(pair.a->send(message.request, message.bytes.data(), message.bytes.size(), 1, 0).ok());
      ++sent;
    }
    while (!sends.empty() && has_ended(sends.front().request)) sends.pop_front();
    while (!receives.empty() && has_ended(receives.front().request)) {
      EXPECT_TRUE(is_done(receives.front().request)) << pair.b->status().message();
      EXPECT_EQ(receives.front().bytes, pattern(size_of(arrived), static_cast<std::uint32_t>(arrived)))
          << arrived;
      receives.pop_front();
      ++arrived;
    }
    return arrived == kMessages || HasFailure();
  }));
}

TEST_P(TcpPolling, AnOrderlyEndRightAfterSmallMessagesIsNoFailure) {
  ASSERT_TRUE(pair.connected());
  for (int i = 0; i < 7; ++i) {
    int value = i, got = -1;
    Request send, receive;
    ASSERT_TRUE(pair.b->receive(receive, &got, sizeof got, 1, 0).ok());
    ASSERT_TRUE(pair.a->send(send, &value, sizeof value, 1, 0).ok());
    ASSERT_TRUE(pair.drive([&] { return has_ended(receive) && has_ended(send); }));
    ASSERT_TRUE(is_done(receive));
    EXPECT_EQ(got, i);
  }
  pair.b->finish();
  pair.a->finish();
  ASSERT_TRUE(pair.drive([&] { return pair.a->closed() && pair.b->closed(); }));
  EXPECT_EQ(pair.a->state(), State::kFinished) << pair.a->status().message();
  EXPECT_EQ(pair.b->state(), State::kFinished) << pair.b->status().message();
}

/// The peer is a raw socket that has sent `small` messages of one byte, all received by polling.
struct TcpPollingOfARawPeer : ::testing::TestWithParam<int> {
  std::unique_ptr<Context> context = make(tcp_variant("", 1));
  RawPeer peer{*context, 1};
  std::byte got{};
  Request next;
  void SetUp() override {
    ASSERT_NE(peer.endpoint, nullptr);
    for (int i = 0; i < GetParam(); ++i) {
      post();
      send(static_cast<std::uint32_t>(i));
      ASSERT_TRUE(drive({context.get()}, [&] { return has_ended(next); }));
      ASSERT_TRUE(is_done(next));
      EXPECT_EQ(got, static_cast<std::byte>(i));
    }
    post();
  }
  void post() { ASSERT_TRUE(peer.endpoint->receive(next, &got, 1, 1, 0).ok()); }
  void send(std::uint32_t sequence) {
    SegmentHeader header;
    header.sequence = sequence;
    header.tag = 1;
    header.segment_bytes = 1;
    header.message_bytes = 1;
    raw_send(peer.sockets[0].get(), segment(header, std::array{static_cast<std::byte>(sequence)}));
  }
  Code end() {
    EXPECT_TRUE(drive({context.get()}, [&] { return has_ended(next); }));
    EXPECT_TRUE(is_failed(next));
    return peer.endpoint->status().code();
  }
};
// 0 to 5: with nothing, and with something that is still in the socket.
INSTANTIATE_TEST_SUITE_P(Before, TcpPollingOfARawPeer, ::testing::Range(0, 6));

TEST_P(TcpPollingOfARawPeer, ThatClosesEndsTheNextReceive) {
  peer.sockets[0].reset();
  EXPECT_EQ(end(), Code::kRemoteError);
}

TEST_P(TcpPollingOfARawPeer, ThatResetsEndsTheNextReceive) {
  raw_reset(peer.sockets[0]);
  EXPECT_EQ(end(), Code::kRemoteError);
}

TEST_P(TcpPollingOfARawPeer, ThatSendsGarbageEndsTheNextReceive) {
  raw_send(peer.sockets[0].get(), std::string(100, 'x'));
  EXPECT_EQ(end(), Code::kDataError);
}

TEST_P(TcpPollingOfARawPeer, ThatSendsAHeaderInTwoPartsIsUnderstood) {
  SegmentHeader header;
  header.sequence = static_cast<std::uint32_t>(GetParam());
  header.tag = 1;
  header.segment_bytes = header.message_bytes = 1;
  const auto bytes = segment(header, std::array{std::byte{0x77}});
  raw_send(peer.sockets[0].get(), std::span(bytes).first(17));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(progress(*context).ok());
    ASSERT_FALSE(has_ended(next));
  }
  raw_send(peer.sockets[0].get(), std::span(bytes).subspan(17));
  ASSERT_TRUE(drive({context.get()}, [&] { return has_ended(next); }));
  EXPECT_TRUE(is_done(next));
  EXPECT_EQ(got, std::byte{0x77});
}

}  // namespace
}  // namespace onebit::transport::test
