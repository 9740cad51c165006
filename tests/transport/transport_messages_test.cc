// What every transport must do: messages of all sizes, both ways, many at once, tags, back-pressure, misuse.
// One thread drives both ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;

class TransportMessages : public ::testing::TestWithParam<Variant> {
 protected:
  static bool small_buffers() { return GetParam().settings.tcp_sndbuf != 0; }
  /// Sends `bytes` from one end to the other and compares.
  static void transfer(Pair& pair, Endpoint& from, Endpoint& to, std::size_t bytes, std::uint32_t seed) {
    const auto sent = pattern(bytes, seed);
    std::vector<std::byte> received(bytes + 1, std::byte{0x5A});
    Request send;
    Request receive;
    ASSERT_TRUE(to.receive(receive, received.data(), bytes, 7, seed).ok());
    ASSERT_TRUE(from.send(send, sent.data(), bytes, 7, seed).ok());
    ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
    ASSERT_TRUE(is_done(send) && is_done(receive)) << from.status().message() << to.status().message();
    EXPECT_EQ(receive.bytes, bytes);
    EXPECT_EQ(send.bytes, bytes);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), received.begin()));
    EXPECT_EQ(received.back(), std::byte{0x5A}) << "written beyond the message";
  }
};

TEST_P(TransportMessages, CarriesMessagesOfEverySizeBothWays) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::uint32_t seed = 1;
  const std::size_t largest = (small_buffers() ? 1UL << 20 : 16UL << 20) + 1;
  for (const std::size_t bytes :
       {0UL, 1UL, 39UL, 4099UL, 65535UL, 65536UL, 65537UL, 262145UL, 1UL << 20, largest}) {
    SCOPED_TRACE(bytes);
    transfer(pair, *pair.a, *pair.b, bytes, seed++);
    transfer(pair, *pair.b, *pair.a, bytes, seed++);
  }
}

TEST_P(TransportMessages, HandsTheHelloToTheAcceptor) {
  const auto hello = pattern(64, 3);
  Pair pair(GetParam(), hello);
  ASSERT_TRUE(pair.connected());
  EXPECT_THAT(pair.b->hello(), ::testing::ElementsAreArray(hello));
  EXPECT_THAT(pair.a->hello(), ::testing::ElementsAreArray(hello));
  EXPECT_THAT(pair.a->peer(), ::testing::HasSubstr("127.0.0.1:"));
}

TEST_P(TransportMessages, TellsOfAMessageThatNoPostedReceiveExpects) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  Request send, expected, taken;
  ASSERT_TRUE(pair.a->send(send, bytes.data(), bytes.size(), 5, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return is_done(send); }));
  ASSERT_TRUE(progress(*pair.context_b, milliseconds(200)).ok());
  ASSERT_TRUE(pair.b->waiting_message());
  EXPECT_FALSE(pair.b->waiting_message()->blocks) << "no receive is posted: it only waits";
  ASSERT_TRUE(pair.b->receive(expected, bytes.data(), bytes.size(), 6, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->waiting_message() && pair.b->waiting_message()->blocks; }));
  ASSERT_TRUE(pair.b->waiting_message());
  EXPECT_EQ(pair.b->waiting_message()->tag, 5U);
  EXPECT_EQ(pair.b->waiting_message()->bytes, 8U);
  ASSERT_TRUE(pair.b->receive(taken, bytes.data(), bytes.size(), 5, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return is_done(taken); }));
  EXPECT_FALSE(pair.b->waiting_message());
}

TEST_P(TransportMessages, ReturnsFromProgressWhenAMessageComesThatNoPostedReceiveExpects) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  Request send, expected;
  ASSERT_TRUE(pair.b->receive(expected, bytes.data(), bytes.size(), 6, 0).ok());
  ASSERT_TRUE(pair.a->send(send, bytes.data(), bytes.size(), 5, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return is_done(send); }));
  for (int turn = 0; turn < 10 && !pair.b->waiting_message(); ++turn) {
    ASSERT_TRUE(progress(*pair.context_b, std::chrono::seconds(20)).ok());
  }
  ASSERT_TRUE(pair.b->waiting_message());
  EXPECT_EQ(pair.b->waiting_message()->tag, 5U);
  EXPECT_EQ(pair.b->waiting_message()->bytes, 8U);
}

TEST_P(TransportMessages, GivesAnAcceptedEndpointToAnotherContextThanTheListeners) {
  const auto listening = make(GetParam());
  auto listener = listening->listen(0);
  ASSERT_TRUE(listener.ok());
  Pair pair(GetParam());
  auto connecting = pair.context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(connecting.ok());
  std::unique_ptr<Endpoint> accepted;
  ASSERT_TRUE(drive({listening.get(), pair.context_a.get(), pair.context_b.get()}, [&] {
    auto made = pair.context_b->accept(**listener);
    EXPECT_TRUE(made.ok());
    if (made.ok() && *made) accepted = std::move(*made);
    return accepted && (*connecting)->state() == State::kReady;
  }));
  listener->reset();
  transfer(pair, **connecting, *accepted, 300'001, 1);  // the listener's context makes no more progress
  transfer(pair, *accepted, **connecting, 300'001, 2);
}

TEST_P(TransportMessages, CarriesBothDirectionsAtOnce) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kBytes = 5'000'011;
  const auto from_a = pattern(kBytes, 1);
  const auto from_b = pattern(kBytes, 2);
  std::vector<std::byte> at_a(kBytes);
  std::vector<std::byte> at_b(kBytes);
  std::array<Request, 4> requests;
  ASSERT_TRUE(pair.a->send(requests[0], from_a.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.b->send(requests[1], from_b.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.a->receive(requests[2], at_a.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(requests[3], at_b.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return std::all_of(requests.begin(), requests.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_done));
  EXPECT_EQ(at_a, from_b);
  EXPECT_EQ(at_b, from_a);
}

TEST_P(TransportMessages, KeepsManyRequestsInFlightTestedInAnyOrder) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kCount = 32 * 8;
  std::mt19937 random(11);
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  std::vector<Request> sends(kCount);
  std::vector<Request> receives(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    sent.push_back(pattern(random() % 5 == 0 ? random() % 400'000 : random() % 3000, i));
    received.emplace_back(400'000);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(pair.b->receive(receives[i], received[i].data(), received[i].size(), i % 8, 9).ok());
    ASSERT_TRUE(pair.a->send(sends[i], sent[i].data(), sent[i].size(), i % 8, 9).ok());
  }
  std::vector<std::size_t> order(kCount);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    ASSERT_TRUE(pair.drive([&] { return has_ended(receives[i]) && has_ended(sends[i]); }));
    ASSERT_TRUE(is_done(receives[i]) && is_done(sends[i]));
    received[i].resize(receives[i].bytes);
    EXPECT_EQ(received[i], sent[i]) << i;
  }
}

TEST_P(TransportMessages, MatchesByTagAndInOrderWithinATag) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::uint32_t, 4> values{1, 2, 3, 4};
  std::array<std::uint32_t, 4> at_b{};
  std::array<Request, 4> sends;
  std::array<Request, 4> receives;
  // Tags on the wire: 5, 6, 5, 6. Receives are posted 6, 6, 5, 5.
  for (std::size_t i = 0; i < 4; ++i) ASSERT_TRUE(pair.a->send(sends[i], &values[i], 4, 5 + i % 2, 0).ok());
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.b->receive(receives[i], &at_b[i], 4, i < 2 ? 6 : 5, 0).ok());
  }
  ASSERT_TRUE(pair.drive([&] { return std::all_of(receives.begin(), receives.end(), has_ended); }));
  EXPECT_THAT(at_b, ::testing::ElementsAre(2, 4, 1, 3));
}

TEST_P(TransportMessages, AMessageWithoutAReceiveHoldsThoseBehindIt) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  const std::uint32_t first = 1;
  const std::uint32_t second = 2;
  std::uint32_t at_first = 0;
  std::uint32_t at_second = 0;
  std::array<Request, 4> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], &at_second, 4, 2, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[1], &first, 4, 1, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[2], &second, 4, 2, 0).ok());
  EXPECT_FALSE(pair.drive([&] { return has_ended(requests[0]); }, milliseconds(100)));
  ASSERT_TRUE(pair.b->receive(requests[3], &at_first, 4, 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(requests[0]) && has_ended(requests[3]); }));
  EXPECT_EQ(at_first, 1U);
  EXPECT_EQ(at_second, 2U);
}

TEST_P(TransportMessages, LateReceivesPushBackAndLoseNothing) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  const std::size_t bytes = small_buffers() ? 4UL << 20 : 64UL << 20;  // far more than kernel buffers hold
  const auto sent = pattern(bytes, 1);
  std::array<Request, 2> requests;
  ASSERT_TRUE(pair.a->send(requests[0], sent.data(), bytes, 1, 0).ok());
  EXPECT_FALSE(pair.drive([&] { return has_ended(requests[0]); }, milliseconds(300)));
  EXPECT_LT(pair.b->counters().wire_received, 1U << 20) << "read without a place to put it";
  std::vector<std::byte> received(bytes);
  ASSERT_TRUE(pair.b->receive(requests[1], received.data(), bytes, 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(requests[0]) && has_ended(requests[1]); }));
  EXPECT_EQ(received, sent);
}

TEST_P(TransportMessages, ReportsRequestsWithNotifyOnce) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  Request send;
  Request silent;
  send.notify = true;
  std::array<Request, 2> receives;
  receives[0].notify = true;
  ASSERT_TRUE(pair.b->receive(receives[0], bytes.data(), 8, 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(receives[1], bytes.data(), 8, 1, 0).ok());
  ASSERT_TRUE(pair.a->send(send, bytes.data(), 8, 1, 0).ok());
  ASSERT_TRUE(pair.a->send(silent, bytes.data(), 8, 1, 0).ok());
  std::vector<Request*> completed_a;
  std::vector<Request*> completed_b;
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (!(has_ended(receives[1]) && has_ended(silent)) && !deadline.passed()) {
    ASSERT_TRUE(pair.context_a->progress(milliseconds(0), completed_a).ok());
    ASSERT_TRUE(pair.context_b->progress(milliseconds(0), completed_b).ok());
  }
  EXPECT_THAT(completed_a, ::testing::ElementsAre(&send));
  EXPECT_THAT(completed_b, ::testing::ElementsAre(&receives[0]));
}

TEST_P(TransportMessages, CountsPayloadAndWireBytes) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  transfer(pair, *pair.a, *pair.b, 1'000'000, 1);
  const Counters sent = pair.a->counters();
  const Counters received = pair.b->counters();
  EXPECT_EQ(sent.payload_sent, 1'000'000U);
  EXPECT_EQ(received.payload_received, 1'000'000U);
  EXPECT_EQ(sent.wire_sent, received.wire_received);
  EXPECT_GT(sent.wire_sent, sent.payload_sent);
  EXPECT_LT(sent.wire_sent, sent.payload_sent + 1000);
}

TEST_P(TransportMessages, AMessageLongerThanItsReceiveFailsBothEndsAndSaysWhy) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 100> bytes{};
  std::array<Request, 2> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], bytes.data(), 50, 1, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[1], bytes.data(), 100, 1, 0).ok());
  ASSERT_TRUE(
      pair.drive([&] { return pair.b->state() == State::kFailed && pair.a->state() == State::kFailed; }));
  EXPECT_TRUE(is_failed(requests[0]));
  EXPECT_EQ(pair.b->status().code(), Code::kInvalidUsage);
  EXPECT_THAT(pair.b->status().message(), ::testing::HasSubstr("100 bytes"));
  EXPECT_EQ(pair.a->status().code(), Code::kRemoteError);
  EXPECT_THAT(pair.a->status().message(), ::testing::HasSubstr("100 bytes"));
  EXPECT_EQ(pair.context_b->failed(), pair.b.get());
}

TEST_P(TransportMessages, AnotherCheckWordFails) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  std::array<Request, 2> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], bytes.data(), 8, 1, 0x11).ok());
  ASSERT_TRUE(pair.a->send(requests[1], bytes.data(), 8, 1, 0x22).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->state() == State::kFailed; }));
  EXPECT_EQ(pair.b->status().code(), Code::kInvalidUsage);
  EXPECT_THAT(pair.b->status().message(), ::testing::HasSubstr("0x22"));
}

TEST_P(TransportMessages, RefusesMisuseWithoutHarm) {
  const Variant& variant = GetParam();
  Pair pair(variant);
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  Request receive;
  ASSERT_TRUE(pair.b->receive(receive, bytes.data(), 8, 1, 0).ok());
  EXPECT_EQ(pair.b->receive(receive, bytes.data(), 8, 1, 0).code(), Code::kInvalidUsage);
  EXPECT_EQ(pair.context_a->listen(99).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.context_a->connect(0, Handle{}, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.context_a->connect(0, pair.listener->handle(), pattern(300, 1)).status().code(),
            Code::kInvalidArgument);
  auto early = pair.context_a->connect(0, pair.listener->handle(), {});
  ASSERT_TRUE(early.ok());
  Request request;
  EXPECT_EQ((*early)->send(request, bytes.data(), 8, 1, 0).code(), Code::kInvalidUsage);
  transfer(pair, *pair.a, *pair.b, 8, 0);
}

TEST_P(TransportMessages, ServesManyEndpointsAndOneFailureDisturbsNoOther) {
  constexpr std::size_t kCount = 64;
  std::unique_ptr<Context> context_a = make(GetParam());
  std::unique_ptr<Context> context_b = make(GetParam());
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  std::vector<std::unique_ptr<Endpoint>> as;
  std::vector<std::unique_ptr<Endpoint>> bs(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::array<std::byte, 1> hello{static_cast<std::byte>(i)};
    auto made = context_a->connect(0, (*listener)->handle(), hello);
    ASSERT_TRUE(made.ok()) << made.status().message();
    as.push_back(std::move(*made));
  }
  std::size_t accepted = 0;
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    auto made = (*listener)->accept();
    EXPECT_TRUE(made.ok());
    if (made.ok() && *made) {
      const auto at = static_cast<std::size_t>((*made)->hello()[0]);
      bs[at] = std::move(*made);
      ++accepted;
    }
    return accepted == kCount &&
           std::all_of(as.begin(), as.end(), [](const auto& e) { return e->state() == State::kReady; });
  }));
  const auto sent = pattern(100'000, 1);
  std::vector<std::vector<std::byte>> received(kCount, std::vector<std::byte>(sent.size()));
  std::vector<Request> sends(kCount);
  std::vector<Request> receives(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(bs[i]->receive(receives[i], received[i].data(), sent.size(), i, 0).ok());
    if (i == 10) as[i]->abort(Status(Code::kAborted, "one of many"));
    if (i == 20) as[i].reset();
    if (i != 10 && i != 20) {
      ASSERT_TRUE(as[i]->send(sends[i], sent.data(), sent.size(), i, 0).ok());
    }
  }
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    return std::all_of(receives.begin(), receives.end(), has_ended) &&
           std::none_of(sends.begin(), sends.end(),
                        [](const Request& send) { return send.state == Request::State::kPending; });
  }));
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i == 10 || i == 20) {
      EXPECT_TRUE(is_failed(receives[i]));
    } else {
      EXPECT_TRUE(is_done(receives[i])) << i << bs[i]->status().message();
      EXPECT_EQ(received[i], sent);
    }
  }
  EXPECT_EQ(context_a->failed(), as[10].get());
  as[10].reset();
  EXPECT_EQ(context_a->failed(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportMessages, ::testing::ValuesIn(all_variants()),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace onebit::transport::test
