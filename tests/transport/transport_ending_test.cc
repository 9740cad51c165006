// How connections end, for every transport: in order, by abort, by destruction; nothing that was sent is lost
// in an orderly end, and the other end learns why of any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;

using TransportEnding = ::testing::TestWithParam<Variant>;

TEST_P(TransportEnding, FinishLetsEverythingArriveFirst) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kBytes = 3'000'000;
  const auto sent = pattern(kBytes, 5);
  std::vector<std::byte> received(kBytes);
  std::array<Request, 4> requests;
  const std::uint32_t last = 77;
  std::uint32_t at_last = 0;
  ASSERT_TRUE(pair.a->send(requests[0], sent.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[1], &last, 4, 2, 0).ok());
  pair.a->finish();
  EXPECT_EQ(pair.a->send(requests[2], &last, 4, 2, 0).code(), Code::kInvalidUsage);
  EXPECT_FALSE(pair.a->closed());
  ASSERT_TRUE(pair.b->receive(requests[2], received.data(), kBytes, 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(requests[3], &at_last, 4, 2, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->state() == State::kFinished && pair.a->closed(); }));
  EXPECT_TRUE(is_done(requests[2]) && is_done(requests[3]));
  EXPECT_EQ(received, sent);
  EXPECT_EQ(at_last, 77U);
  EXPECT_EQ(pair.b->receive(requests[3], &at_last, 4, 2, 0).code(), Code::kRemoteError);
  pair.a.reset();
  pair.b->finish();
  EXPECT_TRUE(pair.drive([&] { return pair.b->closed(); }));
  EXPECT_EQ(pair.b->state(), State::kFinished);
  EXPECT_EQ(pair.context_b->failed(), nullptr);
}

TEST_P(TransportEnding, WhatWasSentBeforeAPeerLeftIsThereForLateReceives) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  constexpr std::size_t kCount = 10;  // as much as the receiving kernel holds
  constexpr std::size_t kBytes = 5000;
  std::vector<Request> sends(kCount);
  const auto sent = pattern(kBytes, 5);
  for (Request& send : sends) ASSERT_TRUE(pair.a->send(send, sent.data(), kBytes, 1, 0).ok());
  pair.a->finish();
  ASSERT_TRUE(drive({pair.context_a.get()}, [&] { return pair.a->closed(); }));
  pair.a.reset();
  EXPECT_FALSE(drive(
      {pair.context_b.get()}, [&] { return pair.b->state() != State::kReady; }, milliseconds(100)))
      << pair.b->status().message();
  for (std::size_t i = 0; i < kCount; ++i) {
    std::vector<std::byte> received(kBytes);
    Request receive;
    ASSERT_TRUE(pair.b->receive(receive, received.data(), kBytes, 1, 0).ok());
    ASSERT_TRUE(drive({pair.context_b.get()}, [&] { return has_ended(receive); }));
    ASSERT_TRUE(is_done(receive)) << pair.b->status().message();
    EXPECT_EQ(received, sent);
  }
  EXPECT_TRUE(drive({pair.context_b.get()}, [&] { return pair.b->state() == State::kFinished; }));
}

TEST_P(TransportEnding, AReceiveThatNobodyAnswersBeforeTheGoodbyeFails) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  Request receive;
  std::uint32_t value = 0;
  ASSERT_TRUE(pair.b->receive(receive, &value, 4, 0x33, 0).ok());
  pair.a->finish();
  ASSERT_TRUE(pair.drive([&] { return has_ended(receive); }));
  EXPECT_TRUE(is_failed(receive));
  EXPECT_EQ(pair.b->status().code(), Code::kRemoteError);
  EXPECT_THAT(pair.b->status().message(), ::testing::HasSubstr("finished"));
}

TEST_P(TransportEnding, BothEndsFinishAtOnceAndDestroyWithoutLoss) {
  for (int round = 0; round < 20; ++round) {
    Pair pair(GetParam());
    ASSERT_TRUE(pair.connected());
    const auto sent = pattern(300'000, 5);
    std::vector<std::byte> at_a(sent.size());
    std::vector<std::byte> at_b(sent.size());
    std::array<Request, 4> requests;
    ASSERT_TRUE(pair.a->receive(requests[0], at_a.data(), at_a.size(), 1, 0).ok());
    ASSERT_TRUE(pair.b->receive(requests[1], at_b.data(), at_b.size(), 1, 0).ok());
    ASSERT_TRUE(pair.a->send(requests[2], sent.data(), sent.size(), 1, 0).ok());
    ASSERT_TRUE(pair.b->send(requests[3], sent.data(), sent.size(), 1, 0).ok());
    pair.a->finish();
    pair.b->finish();
    ASSERT_TRUE(pair.drive([&] {
      if (pair.a && pair.a->closed() && has_ended(requests[0])) pair.a.reset();
      if (pair.b && pair.b->closed() && has_ended(requests[1])) pair.b.reset();
      return !pair.a && !pair.b;
    }));
    EXPECT_TRUE(is_done(requests[0]) && is_done(requests[1]));
    EXPECT_TRUE(at_a == sent && at_b == sent);
  }
}

TEST_P(TransportEnding, AbortFailsPendingRequestsAndTellsThePeerWhy) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  std::array<std::byte, 8> bytes{};
  Request here;
  Request there;
  here.notify = true;
  ASSERT_TRUE(pair.a->receive(here, bytes.data(), 8, 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(there, bytes.data(), 8, 1, 0).ok());
  pair.a->abort(Status(Code::kAborted, "rank 3 ran out of patience"));
  EXPECT_EQ(pair.a->state(), State::kFailed);
  EXPECT_EQ(pair.a->status().code(), Code::kAborted);
  EXPECT_TRUE(is_failed(here));
  std::vector<Request*> completed;
  ASSERT_TRUE(pair.context_a->progress(milliseconds(0), completed).ok());
  EXPECT_THAT(completed, ::testing::ElementsAre(&here));
  ASSERT_TRUE(pair.drive([&] { return pair.b->state() == State::kFailed; }));
  EXPECT_TRUE(is_failed(there));
  EXPECT_EQ(pair.b->status().code(), Code::kRemoteError);
  EXPECT_THAT(pair.b->status().message(), ::testing::HasSubstr("rank 3 ran out of patience"));
  EXPECT_THAT(pair.b->status().message(), ::testing::HasSubstr("127.0.0.1"));
}

TEST_P(TransportEnding, AbortInTheMiddleOfAMessageFailsThePeer) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.connected());
  const auto sent = pattern(64UL << 20, 1);
  std::vector<std::byte> received(sent.size());
  std::array<Request, 2> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[1], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->counters().payload_received > 1'000'000; }));
  pair.a->abort(Status(Code::kAborted, "enough"));
  EXPECT_TRUE(is_failed(requests[1]));
  ASSERT_TRUE(pair.drive([&] { return pair.b->state() == State::kFailed; }));
  EXPECT_TRUE(is_failed(requests[0]));
  EXPECT_EQ(pair.b->status().code(), Code::kRemoteError);
}

TEST_P(TransportEnding, MayBeDestroyedInEveryState) {
  const Variant& variant = GetParam();
  std::array<std::byte, 64> bytes{};
  const auto large = pattern(20UL << 20, 1);
  for (int stage = 0; stage < 7; ++stage) {
    SCOPED_TRACE(stage);
    Request receive;
    Request send;
    receive.notify = send.notify = true;
    std::unique_ptr<Context> orphan_context = make(variant);
    auto listener = orphan_context->listen(0);
    ASSERT_TRUE(listener.ok());
    auto connecting = orphan_context->connect(0, (*listener)->handle(), {});
    ASSERT_TRUE(connecting.ok());
    if (stage == 0) continue;  // connecting, nothing moved
    if (stage == 1) {          // the listener goes first, in the middle of handshakes
      ASSERT_TRUE(progress(*orphan_context).ok());
      listener->reset();
      ASSERT_TRUE(drive({orphan_context.get()}, [&] { return (*connecting)->state() == State::kFailed; }));
      continue;
    }
    if (stage == 2) {  // the context goes before what it made
      ASSERT_TRUE(progress(*orphan_context).ok());
      orphan_context.reset();
      continue;
    }
    if (stage == 3) {  // never accepted
      drive(
          {orphan_context.get()}, [&] { return (*connecting)->state() == State::kReady; }, milliseconds(100));
      continue;
    }
    std::unique_ptr<Endpoint> accepted;
    ASSERT_TRUE(drive({orphan_context.get()}, [&] {
      auto made = (*listener)->accept();
      EXPECT_TRUE(made.ok());
      if (made.ok() && *made) accepted = std::move(*made);
      return accepted && (*connecting)->state() == State::kReady;
    }));
    ASSERT_TRUE(accepted->receive(receive, bytes.data(), bytes.size(), 9, 0).ok());
    ASSERT_TRUE((*connecting)->send(send, large.data(), large.size(), 1, 0).ok());
    ASSERT_TRUE(progress(*orphan_context).ok());
    if (stage == 4) connecting->reset();
    if (stage == 5) accepted.reset();
    if (stage == 6) {
      (*connecting)->finish();
      connecting->reset();
      accepted.reset();
    }
    std::vector<Request*> completed;
    ASSERT_TRUE(orphan_context->progress(milliseconds(10), completed).ok());
    EXPECT_LE(completed.size(), 1U) << "requests of a destroyed endpoint are not reported";
    if (stage != 5) {
      EXPECT_TRUE(has_ended(send));
    }
    if (stage != 4) {
      EXPECT_TRUE(is_failed(receive));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportEnding, ::testing::ValuesIn(all_variants()),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace onebit::transport::test
