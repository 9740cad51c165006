// Garbage on an authenticated flow: it fails that endpoint with kDataError, and writes nowhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tcp_raw_peer.h"
#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;

struct TcpGarbage : ::testing::Test {
  std::unique_ptr<Context> context = make(tcp_variant("", 2));

  /// What the endpoint says of `bytes` on flow 0 of `flows`, with one receive of 100 bytes with tag 1 posted.
  Status status_after(const std::vector<std::byte>& bytes, std::size_t flows = 1) {
    RawPeer peer(*context, flows);
    std::vector<std::byte> memory(300, std::byte{0x77});  // 100 bytes on each side of the buffer
    Request receive;
    EXPECT_TRUE(peer.endpoint->receive(receive, memory.data() + 100, 100, 1, 5).ok());
    raw_send(peer.sockets[0].get(), bytes);
    drive(
        {context.get()}, [&] { return peer.endpoint->state() == State::kFailed; }, milliseconds(1000));
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(memory[i], std::byte{0x77});
      EXPECT_EQ(memory[200 + i], std::byte{0x77});
    }
    return peer.endpoint->status();
  }
};

SegmentHeader sound() {
  SegmentHeader header;
  header.tag = 1;
  header.check = 5;
  header.segment_bytes = 10;
  header.message_bytes = 100;
  return header;
}

TEST_F(TcpGarbage, EveryFieldIsChecked) {
  const std::vector<std::byte> payload(10);
  struct Case {
    const char* name;
    void (*change)(SegmentHeader&);
  };
  for (const Case& c : {
           Case{"kind", [](SegmentHeader& h) { h.kind = static_cast<SegmentKind>(9); }},
           Case{"ahead", [](SegmentHeader& h) { h.sequence = 1; }},
           Case{"behind", [](SegmentHeader& h) { h.sequence = 0xFFFFFFFF; }},
           Case{"far", [](SegmentHeader& h) { h.sequence = 0x80000000; }},
           Case{"offset", [](SegmentHeader& h) { h.offset = 95; }},
           Case{"huge offset", [](SegmentHeader& h) { h.offset = ~0ULL - 5; }},
           Case{"segment", [](SegmentHeader& h) { h.segment_bytes = 101; }},
           Case{"huge segment", [](SegmentHeader& h) { h.segment_bytes = 0xFFFFFFFF; }},
           Case{"empty segment", [](SegmentHeader& h) { h.segment_bytes = 0; }},
           Case{"huge message", [](SegmentHeader& h) { h.message_bytes = ~0ULL; }},
           Case{"early goodbye",
                [](SegmentHeader& h) {
                  h.kind = SegmentKind::kGoodbye;
                  h.segment_bytes = 0;
                  h.sequence = 3;
                }},
           Case{"goodbye with contents", [](SegmentHeader& h) { h.kind = SegmentKind::kGoodbye; }},
           Case{"long reason",
                [](SegmentHeader& h) {
                  h.kind = SegmentKind::kAbort;
                  h.segment_bytes = 1 << 20;
                }},
       }) {
    SCOPED_TRACE(c.name);
    SegmentHeader header = sound();
    c.change(header);
    EXPECT_EQ(status_after(segment(header, payload)).code(), Code::kDataError);
  }
}

TEST_F(TcpGarbage, ASecondSegmentMustFitTheFirst) {
  const std::vector<std::byte> payload(60);
  struct Case {
    const char* name;
    void (*change)(SegmentHeader&);
  };
  for (const Case& c : {
           Case{"more than the message", [](SegmentHeader&) {}},
           Case{"another size", [](SegmentHeader& h) { h.message_bytes = 99; }},
           Case{"another tag", [](SegmentHeader& h) { h.tag = 2; }},
           Case{"another check word", [](SegmentHeader& h) { h.check = 6; }},
       }) {
    SCOPED_TRACE(c.name);
    SegmentHeader header = sound();
    header.segment_bytes = 60;
    auto bytes = segment(header, payload);
    if (std::string(c.name) != "more than the message") header.segment_bytes = 40;
    header.offset = 40;
    c.change(header);
    header.offset = std::min<std::uint64_t>(header.offset, header.message_bytes - header.segment_bytes);
    const auto second = segment(header, payload);
    bytes.insert(bytes.end(), second.begin(), second.end());
    EXPECT_EQ(status_after(bytes).code(), Code::kDataError);
  }
}

TEST_F(TcpGarbage, BytesAfterTheGoodbyeFail) {
  SegmentHeader header;
  header.kind = SegmentKind::kGoodbye;
  auto bytes = segment(header);
  bytes.push_back(std::byte{1});
  EXPECT_EQ(status_after(bytes, 2).code(), Code::kDataError);
}

TEST_F(TcpGarbage, AReasonWithOddBytesIsShownSafely) {
  SegmentHeader header;
  header.kind = SegmentKind::kAbort;
  const std::string text = "bad\x1b[31m\nnews";
  header.segment_bytes = static_cast<std::uint32_t>(text.size());
  const Status status = status_after(segment(header, std::as_bytes(std::span(text))));
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("bad [31m news"));
}

TEST_F(TcpGarbage, RandomMutationsNeverWriteOutsideAndNeverCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    RawPeer peer(*context, 1 + random() % 3);
    std::vector<std::byte> memory(4096 * 3, std::byte{0x77});
    std::array<Request, 8> receives;
    for (Request& receive : receives) {
      ASSERT_TRUE(peer.endpoint->receive(receive, memory.data() + 4096, 4096, random() % 3, 0).ok());
    }
    std::uint32_t sequence = 0;
    for (int i = 0; i < 30; ++i) {
      SegmentHeader header;
      header.sequence = sequence;
      header.tag = random() % 3;
      header.message_bytes = random() % 4096;
      header.segment_bytes =
          static_cast<std::uint32_t>(random() % 2 == 0 ? header.message_bytes : random() % 4096);
      if (header.segment_bytes < header.message_bytes && header.message_bytes > 0) {
        header.offset = random() % header.message_bytes;
      }
      if (random() % 3 != 0) ++sequence;
      auto bytes =
          segment(header, std::vector<std::byte>(random() % 2 == 0 ? header.segment_bytes : random() % 500));
      if (random() % 4 == 0) bytes[random() % kHeaderBytes] ^= static_cast<std::byte>(1U << random() % 8);
      raw_send(peer.sockets[random() % peer.sockets.size()].get(), bytes);
      if (random() % 2 == 0) {
        ASSERT_TRUE(progress(*context).ok());
      }
    }
    if (random() % 2 == 0) peer.sockets.clear();
    drive(
        {context.get()}, [&] { return peer.endpoint->state() == State::kFailed; }, milliseconds(2));
    for (std::size_t i = 0; i < 4096; ++i) {
      ASSERT_TRUE(memory[i] == std::byte{0x77} && memory[8192 + i] == std::byte{0x77});
    }
  }
}

TEST_F(TcpGarbage, OneBrokenPeerDisturbsNoOther) {
  RawPeer good(*context, 1);
  EXPECT_EQ(status_after(std::vector<std::byte>(1000)).code(), Code::kDataError);
  std::array<std::byte, 100> memory{};
  Request receive;
  ASSERT_TRUE(good.endpoint->receive(receive, memory.data(), 100, 1, 5).ok());
  SegmentHeader header = sound();
  header.message_bytes = 10;
  raw_send(good.sockets[0].get(), segment(header, std::vector<std::byte>(10)));
  EXPECT_TRUE(drive({context.get()}, [&] { return is_done(receive); }));
  EXPECT_EQ(receive.bytes, 10U);
}

}  // namespace
}  // namespace onebit::transport::test
