// The rules of isend, irecv and test: sizes, order, back-pressure, several receives in one, tags.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "net_pair.h"
#include "support/sanitizers.h"

namespace onebit::nccl_net::test {
namespace {

constexpr int kSendsInFlight = 32 * 8;
constexpr int kReceivesInFlight = 32;

struct Messages : EachVersion {
  Communicator a{net};
  Communicator b{net};
  Connection line{a, b};
  void SetUp() override { ASSERT_TRUE(line.made()); }
};
ONEBIT_EACH_VERSION(Messages);

TEST_P(Messages, OfEverySizeArrive) {
  std::uint32_t seed = 1;
  for (const std::size_t bytes : {0UL, 1UL, 7UL, 8UL, 4099UL, 65536UL, 65537UL, 1048577UL, 16777259UL}) {
    SCOPED_TRACE(bytes);
    const auto sent = pattern(bytes, seed++);
    std::vector<std::byte> got(bytes + 1, std::byte{0x5A});
    Pending receiving(net, line.receive(got.data(), bytes));
    Pending sending(net, line.send(sent.data(), bytes));
    ASSERT_TRUE(complete({&sending, &receiving}));
    EXPECT_EQ(receiving.sizes[0], static_cast<int>(bytes));
    EXPECT_EQ(sending.sizes[0], static_cast<int>(bytes));
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
    EXPECT_EQ(got.back(), std::byte{0x5A}) << "written beyond the message";
  }
}

TEST_P(Messages, AReceiveMayBeLargerThanItsMessageAndTellsTheTrueSize) {
  const auto sent = pattern(100, 1);
  std::vector<std::byte> got(4096);
  Pending receiving(net, line.receive(got.data(), got.size()));
  Pending sending(net, line.send(sent.data(), sent.size()));
  ASSERT_TRUE(complete({&receiving, &sending}));
  EXPECT_EQ(receiving.sizes[0], 100);
}

TEST_P(Messages, LargerThanTheirReceiveAreAnErrorAtBothEnds) {
  const auto sent = pattern(4097, 1);
  std::vector<std::byte> got(4096);
  Pending receiving(net, line.receive(got.data(), got.size()));
  Pending sending(net, line.send(sent.data(), sent.size()));
  EXPECT_TRUE(until([&] { return receiving.poll(); }));
  EXPECT_EQ(receiving.result, Result::kInvalidUsage);
  EXPECT_THAT(take_log(), ::testing::HasSubstr("4097 bytes, the receive here 4096"));
  void* request = nullptr;
  EXPECT_TRUE(until([&] {
    return net.isend(line.sender(), got.data(), 8, 0, nullptr, &request) != Result::kSuccess;
  })) << "the sender learns of it";
  EXPECT_THAT(take_log(), ::testing::HasSubstr("4097 bytes, the receive here 4096")) << "and why";
}

TEST_P(Messages, ThatAreSentBeforeTheirReceiveIsPostedWaitForIt) {
  const auto sent = pattern(2'000'003, 1);
  std::vector<std::byte> got(sent.size());
  Pending sending(net, line.send(sent.data(), sent.size()));
  for (int i = 0; i < 100; ++i) sending.poll();
  Pending receiving(net, line.receive(got.data(), got.size()));
  ASSERT_TRUE(complete({&receiving, &sending}));
  EXPECT_EQ(got, sent);
}

TEST_P(Messages, AReceiveRequestThatComesInAsOneIsOverwritten) {
  void* const optional = reinterpret_cast<void*>(1);
  std::vector<std::byte> got(8);
  std::vector<Pending> receiving;
  for (int i = 0; i < kReceivesInFlight; ++i) {
    void* const request = line.receive(got.data(), 0, 0, optional);
    ASSERT_NE(request, optional);
    ASSERT_NE(request, nullptr);
    receiving.emplace_back(net, request);
  }
  EXPECT_EQ(line.receive(got.data(), 0, 0, optional), nullptr) << "none is free";
  std::vector<Pending> sending;
  for (int i = 0; i < kReceivesInFlight; ++i) sending.emplace_back(net, line.send(nullptr, 0));
  std::vector<Pending*> all;
  for (Pending& each : receiving) all.push_back(&each);
  for (Pending& each : sending) all.push_back(&each);
  EXPECT_TRUE(complete(all));
}

TEST_P(Messages, AsManyAsNcclMayHaveAreInFlightAndMoreAreBackPressure) {
  std::vector<std::vector<std::byte>> sent;
  std::vector<Pending> sending;
  for (int i = 0; i < kSendsInFlight; ++i) {
    sent.push_back(pattern(i % 7 == 0 ? 100'003 : 333, static_cast<std::uint32_t>(i)));
    void* const request = line.send(sent.back().data(), sent.back().size());
    ASSERT_NE(request, nullptr) << i;
    sending.emplace_back(net, request);
  }
  std::vector<std::byte> extra(1);
  EXPECT_EQ(line.send(extra.data(), 1), nullptr);
  std::vector<std::byte> got(100'003);
  for (int i = 0; i < kSendsInFlight; ++i) {
    Pending receiving(net, line.receive(got.data(), got.size()));
    ASSERT_TRUE(until([&] {
      for (Pending& each : sending) each.poll();
      return receiving.poll();
    }));
    ASSERT_EQ(receiving.sizes[0], static_cast<int>(sent[static_cast<std::size_t>(i)].size())) << i;
    ASSERT_TRUE(std::equal(sent[static_cast<std::size_t>(i)].begin(), sent[static_cast<std::size_t>(i)].end(),
                           got.begin()));
  }
  std::vector<Pending*> all;
  for (Pending& each : sending) all.push_back(&each);
  EXPECT_TRUE(complete(all));
}

TEST_P(Messages, RequestsAreTestedInAnyOrder) {
  std::mt19937 random(7);
  for (const std::size_t bytes : {8UL, 1048576UL}) {
    std::vector<std::vector<std::byte>> sent, got;
    std::vector<Pending> pending;
    for (std::uint32_t i = 0; i < 16; ++i) {
      sent.push_back(pattern(bytes, i));
      got.emplace_back(bytes);
      pending.emplace_back(net, line.receive(got.back().data(), bytes));
    }
    for (std::uint32_t i = 0; i < 16; ++i) pending.emplace_back(net, line.send(sent[i].data(), bytes));
    std::vector<Pending*> order;
    for (Pending& each : pending) order.push_back(&each);
    std::shuffle(order.begin(), order.end(), random);
    for (int i = 0; i < 200; ++i) order.front()->poll();
    ASSERT_TRUE(complete(order));
    EXPECT_EQ(got, sent);
  }
}

TEST_P(Messages, OnlyTheOldestRequestOfEachEndIsTestedAsNcclDoes) {
  constexpr std::size_t kDepth = 8;
  constexpr std::size_t kCount = 500;
  constexpr std::size_t kBytes = 20'011;
  const auto sent = pattern(kBytes + kCount, 3);
  std::vector<std::vector<std::byte>> got(kDepth, std::vector<std::byte>(kBytes));
  std::deque<Pending> sending, receiving;
  std::size_t sends = 0, receives = 0, arrived = 0;
  ASSERT_TRUE(until([&] {
    if (receives < kCount && receiving.size() < kDepth) {
      receiving.emplace_back(net, line.receive(got[receives++ % kDepth].data(), kBytes));
    }
    if (sends < kCount && sending.size() < kDepth) {
      sending.emplace_back(net, line.send(sent.data() + sends, kBytes));
      ++sends;
    }
    if (!sending.empty() && sending.front().poll()) sending.pop_front();
    if (!receiving.empty() && receiving.front().poll()) {
      EXPECT_EQ(receiving.front().result, Result::kSuccess);
      EXPECT_TRUE(std::equal(got[arrived % kDepth].begin(), got[arrived % kDepth].end(),
                             sent.begin() + static_cast<std::ptrdiff_t>(arrived)));
      ++arrived;
      receiving.pop_front();
    }
    return (arrived == kCount && sending.empty()) || HasFailure();
  }));
}

TEST_P(Messages, TestTakesNoSizesWhenNoneAreWanted) {
  int value = 5, got = 0;
  void* const receive = line.receive(&got, sizeof got);
  void* const send = line.send(&value, sizeof value);
  for (void* request : {send, receive}) {
    int done = 0;
    ASSERT_TRUE(until([&] {
      EXPECT_EQ(net.test(request, &done, nullptr), Result::kSuccess);
      return done != 0;
    }));
  }
  EXPECT_EQ(got, 5);
}

TEST_P(Messages, AFlushOfHostMemoryHasNothingToWaitFor) {
  int value = 0;
  void* request = &value;
  EXPECT_EQ(net.iflush(line.receiver(), &value, sizeof value, nullptr, &request), Result::kSuccess);
  EXPECT_EQ(request, nullptr);
}

TEST_P(Messages, OfOneMultiReceiveAreToldApartByTheirTags) {
  std::vector<std::vector<std::byte>> sent, got(8, std::vector<std::byte>(40'000));
  std::vector<void*> data;
  std::vector<int> tags;
  for (std::uint32_t i = 0; i < 8; ++i) {
    sent.push_back(pattern(i * 5000, i));
    data.push_back(got[i].data());
    tags.push_back(static_cast<int>(100 + i));
  }
  Pending receiving(net, line.receive_many(data, std::vector<std::size_t>(8, 40'000), tags));
  std::vector<Pending> sending;
  for (const std::size_t i : {3U, 0U, 7U, 1U, 6U, 2U, 5U, 4U}) {
    sending.emplace_back(net, line.send(sent[i].data(), sent[i].size(), tags[i]));
  }
  std::vector<Pending*> all{&receiving};
  for (Pending& each : sending) all.push_back(&each);
  ASSERT_TRUE(until([&] {
    return std::count_if(all.begin(), all.end(), [](Pending* each) { return each->poll(); }) == 9;
  }));
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(receiving.sizes[i], static_cast<int>(sent[i].size())) << i;
    EXPECT_TRUE(std::equal(sent[i].begin(), sent[i].end(), got[i].begin())) << i;
  }
  for (Pending& each : sending) EXPECT_TRUE(complete({&each}));
}

TEST_P(Messages, AMultiReceiveIsNotDoneBeforeItsLastMessage) {
  int first = 1, second = 2;
  std::array<int, 2> got{};
  Pending receiving(net, line.receive_many({&got[0], &got[1]}, {4, 4}, {1, 2}));
  Pending one(net, line.send(&first, 4, 1));
  ASSERT_TRUE(complete({&one}));
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(receiving.poll());
  Pending two(net, line.send(&second, 4, 2));
  ASSERT_TRUE(complete({&two, &receiving}));
  EXPECT_EQ(got[0], 1);
  EXPECT_EQ(got[1], 2);
}

TEST_P(Messages, TheKthMessageOfATagGoesToTheKthReceiveOfIt) {
  std::array<int, 4> sent{10, 11, 20, 21}, got{};
  Pending first(net, line.receive_many({&got[0], &got[2]}, {4, 4}, {1, 2}));
  Pending second(net, line.receive_many({&got[1], &got[3]}, {4, 4}, {1, 2}));
  std::vector<Pending> sending;
  for (const auto& [i, tag] : {std::pair{2, 2}, {0, 1}, {1, 1}, {3, 2}}) {
    sending.emplace_back(net, line.send(&sent[static_cast<std::size_t>(i)], 4, tag));
  }
  ASSERT_TRUE(complete({&first, &second}));
  EXPECT_EQ(got, sent);
  for (Pending& each : sending) EXPECT_TRUE(complete({&each}));
}

// Several ranks share the connection; one is far ahead. The receiver posts its receive only after those of
// the others have ended, so its messages must not keep theirs back; nor may they all be taken into memory.
TEST_P(Messages, OfATagThatIsNotYetWantedDelayNoOther) {
  constexpr std::size_t kBytes = 300'007;
  constexpr std::size_t kAhead = 64;
  std::vector<std::vector<std::byte>> ahead, late;
  std::vector<Pending> sending;
  for (std::uint32_t i = 0; i < kAhead; ++i) {
    ahead.push_back(pattern(kBytes, i));
    sending.emplace_back(net, line.send(ahead.back().data(), kBytes, 5));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    late.push_back(pattern(kBytes, 1000 + i));
    sending.emplace_back(net, line.send(late.back().data(), kBytes, 1));
  }
  std::vector<std::byte> got(kBytes);
  for (std::uint32_t i = 0; i < 4; ++i) {
    Pending receiving(net, line.receive(got.data(), kBytes, 1));
    ASSERT_TRUE(until([&] {
      for (Pending& each : sending) each.poll();
      return receiving.poll();
    })) << "message "
        << i << " of the wanted tag is kept back";
    ASSERT_TRUE(got == late[i]);
  }
  EXPECT_FALSE(std::all_of(sending.begin(), sending.end(), [](Pending& each) { return each.done; }))
      << "the sender was not asked to hold the others";
  for (std::uint32_t i = 0; i < kAhead; ++i) {
    Pending receiving(net, line.receive(got.data(), kBytes, 5));
    ASSERT_TRUE(until([&] {
      for (Pending& each : sending) each.poll();
      return receiving.poll();
    }));
    ASSERT_TRUE(got == ahead[i]) << i;
  }
  std::vector<Pending*> all;
  for (Pending& each : sending) all.push_back(&each);
  EXPECT_TRUE(complete(all));
}

TEST_P(Messages, AnEarlyOneLargerThanTheReceiveThatComesForItIsAnError) {
  std::vector<std::byte> bytes(1000);
  int other = 0;
  Pending posted(net, line.receive(&other, 4, 1));
  Pending sending(net, line.send(bytes.data(), bytes.size(), 2));
  ASSERT_TRUE(until([&] {
    posted.poll();
    return sending.poll();
  }));
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(posted.poll());
  std::vector<void*> data{bytes.data()}, mhandles{nullptr};
  std::vector<std::size_t> sizes{999};
  std::vector<int> tags{2};
  void* request = nullptr;
  EXPECT_EQ(net.irecv(line.receiver(), data, sizes, tags, mhandles, &request), Result::kInvalidUsage);
  EXPECT_TRUE(until([&] { return posted.poll(); }));
  EXPECT_NE(posted.result, Result::kSuccess);
}

TEST_P(Messages, RandomTrafficOfManyTagsArrivesWhole) {
  constexpr int kTags = 5;
  constexpr std::uint32_t kRounds = 60;
  std::mt19937 random(21);
  // Each tag has its own sequence of sizes, which both ends know.
  const auto size_of = [](int tag, std::uint32_t k) {
    return (static_cast<std::uint32_t>(tag) * 7919 + k * 104729) % 90'001;
  };
  std::array<std::uint32_t, kTags> sent{};
  std::uint32_t groups = 0;
  struct Out {
    std::vector<std::byte> bytes;
    Pending pending;
  };
  struct In {
    std::vector<std::vector<std::byte>> buffers;
    std::uint32_t round;
    Pending pending;
  };
  std::deque<Out> out;
  std::deque<In> in;
  std::uint32_t ended = 0;
  ASSERT_TRUE(until([&] {
    const int tag = static_cast<int>(random() % kTags);
    auto& k = sent[static_cast<std::size_t>(tag)];
    if (k < kRounds) {
      auto bytes = pattern(size_of(tag, k), k * kTags + static_cast<std::uint32_t>(tag));
      if (void* request = line.send(bytes.data(), bytes.size(), tag)) {
        out.push_back({std::move(bytes), Pending(net, request)});
        ++k;
      }
    }
    if (groups < kRounds && in.size() < 3) {
      std::vector<std::vector<std::byte>> buffers(kTags, std::vector<std::byte>(90'001));
      std::vector<void*> data;
      for (auto& buffer : buffers) data.push_back(buffer.data());
      std::vector<int> tags(kTags);
      std::iota(tags.begin(), tags.end(), 0);
      if (void* request = line.receive_many(data, std::vector<std::size_t>(kTags, 90'001), tags)) {
        in.push_back({std::move(buffers), groups++, Pending(net, request)});
      }
    }
    if (!out.empty() && out[random() % out.size()].pending.poll()) {
      std::erase_if(out, [](const Out& each) { return each.pending.done; });
    }
    if (!in.empty() && in.front().pending.poll()) {
      const In& group = in.front();
      EXPECT_EQ(group.pending.result, Result::kSuccess);
      for (int t = 0; t < kTags; ++t) {
        const auto expected =
            pattern(size_of(t, group.round), group.round * kTags + static_cast<std::uint32_t>(t));
        const auto at = static_cast<std::size_t>(t);
        EXPECT_EQ(group.pending.sizes[at], static_cast<int>(expected.size()));
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), group.buffers[at].begin()));
      }
      in.pop_front();
      ++ended;
    }
    return ended == kRounds || HasFailure();
  }));
  std::vector<Pending*> rest;
  for (Out& each : out) rest.push_back(&each.pending);
  EXPECT_TRUE(complete(rest));
}

TEST(LargestMessage, OfOneGibibyteArrives) {
  // Under a sanitizer that takes minutes.
  constexpr std::size_t kBytes = onebit::testing::sanitized() ? 1UL << 26 : 1UL << 30;
  std::vector<std::byte> sent(kBytes), got(kBytes);
  for (std::size_t i = 0; i < kBytes; i += 4096) sent[i] = static_cast<std::byte>(i >> 12 ^ i >> 20);
  for (const int version : {6, 12}) {  // sizes as int and as size_t
    const Communicator a(table_of(version)), b(table_of(version));
    const Connection line(a, b);
    ASSERT_TRUE(line.made());
    Pending receiving(line.net, line.receive(got.data(), kBytes));
    Pending sending(line.net, line.send(sent.data(), kBytes));
    ASSERT_TRUE(complete({&sending, &receiving}, std::chrono::seconds(60)));
    EXPECT_EQ(receiving.sizes[0], static_cast<int>(kBytes));
    EXPECT_TRUE(got == sent);
    void* request = nullptr;
    EXPECT_EQ(line.net.isend(line.sender(), sent.data(), (1UL << 30) + 1, 0, nullptr, &request),
              Result::kInvalidArgument);
    std::fill(got.begin(), got.end(), std::byte{0});
  }
}

}  // namespace
}  // namespace onebit::nccl_net::test
