// Encodings that cross the network: what is written is read back, and nothing else is accepted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "bootstrap/member.h"
#include "bootstrap/stream.h"
#include "bootstrap/wire.h"

namespace onebit::bootstrap {
namespace {

using Bytes = std::vector<std::byte>;

Member some_member() {
  Member member = this_member(3, 8, "job", std::chrono::milliseconds(1234));
  member.host = "node3";
  return member;
}

TEST(Messages, AMemberReadsBackAsWritten) {
  const Member member = some_member();
  const auto read = decode_member(encode_member(member));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(3U, read->rank);
  EXPECT_EQ(8U, read->world_size);
  EXPECT_EQ(member.job, read->job);
  EXPECT_EQ(member.pid, read->pid);
  EXPECT_EQ(member.machine, read->machine);
  EXPECT_EQ(member.version, read->version);
  EXPECT_EQ("node3", read->host);
  EXPECT_EQ(1234, read->patience.count());
  EXPECT_EQ(formatted("10.0.0.3 (node3, pid {})", member.pid), read->where("10.0.0.3"));
}

TEST(Messages, AMemberFitsAHandshakeWhateverItsNames) {
  Member member = some_member();
  member.host = std::string(10'000, 'h');
  member.version = std::string(10'000, 'v');
  EXPECT_LE(encode_member(member).size(), kMaxHandshakePayload);
  EXPECT_TRUE(decode_member(encode_member(member)).ok());
}

TEST(Messages, ControlCharactersInNamesDoNotReachALog) {
  Member member = some_member();
  member.host = "a\x1b[31mb";
  EXPECT_EQ("a?[31mb", decode_member(encode_member(member))->host);
}

TEST(Messages, ATruncatedOrLongerMessageIsRefused) {
  Bytes member = encode_member(some_member());
  for (std::size_t size = 0; size < member.size(); ++size) {
    EXPECT_EQ(Code::kDataError, decode_member(std::span(member).first(size)).status().code()) << size;
  }
  member.push_back({});
  EXPECT_FALSE(decode_member(member).ok());

  Roll roll;
  roll.entries = {{"10.0.0.1 (a, pid 1)", 1}, {"10.0.0.2 (b, pid 2)", 2}};
  Bytes bytes = encode_roll(roll);
  ASSERT_TRUE(decode_roll(bytes, 2).ok());
  EXPECT_EQ("10.0.0.2 (b, pid 2)", decode_roll(bytes, 2)->entries[1].where);
  EXPECT_FALSE(decode_roll(bytes, 1).ok());
  EXPECT_FALSE(decode_roll(bytes, 3).ok());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_roll(std::span(bytes).first(size), 2).ok());
  }
}

TEST(Messages, AFailureKeepsItsCodeAndText) {
  const Status read = decode_failure(encode_failure(Status(Code::kTimeout, "rank 3 is late")));
  EXPECT_EQ(Code::kTimeout, read.code());
  EXPECT_EQ("rank 3 is late", read.message());
  EXPECT_EQ(Code::kDataError, decode_failure({}).code());
  EXPECT_EQ(Code::kDataError, decode_failure(Bytes{std::byte{0}, std::byte{0}, std::byte{0}}).code());
  EXPECT_EQ(Code::kDataError, decode_failure(Bytes{std::byte{99}, std::byte{0}, std::byte{0}}).code());
  EXPECT_TRUE(decode_failure(encode_failure(Status(Code::kTimeout, std::string(1 << 20, 'x')))).code() ==
              Code::kTimeout);
}

TEST(Messages, RandomBytesAreRefusedOrReadWithinTheirBounds) {
  std::minstd_rand random(7);
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4 == 0 ? random() & 0xFF : 0);
    static_cast<void>(decode_member(bytes));
    static_cast<void>(decode_roll(bytes, random() % 5));
    static_cast<void>(decode_failure(bytes));
  }
}

TEST(Messages, RangesOfNumbersAreCompact) {
  EXPECT_EQ("", ranges_of({}));
  EXPECT_EQ("4", ranges_of({4}));
  EXPECT_EQ("1-3, 7, 9-10", ranges_of({1, 2, 3, 7, 9, 10}));
}

struct Pair {
  explicit Pair(std::size_t limit) {
    std::array<int, 2> fds{};
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()));
    near = FrameStream(UniqueSocket(fds[0]), limit);
    far = FrameStream(UniqueSocket(fds[1]), limit);
  }
  FrameStream near, far;
};
std::shared_ptr<const Bytes> payload(std::size_t size) {
  return std::make_shared<const Bytes>(size, std::byte{5});
}

TEST(Stream, CarriesFramesOfEverySizeThroughASmallBuffer) {
  Pair pair(1 << 20);
  const std::vector<std::size_t> sizes{0, 1, 11, 65535, 65536, 65537, 1 << 20, 0, 3};
  for (const std::size_t size : sizes) pair.near.queue(FrameType::kData, payload(size));
  for (std::size_t next = 0; next < sizes.size();) {
    ASSERT_TRUE(pair.near.flush().ok());
    auto frame = pair.far.read();
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    if (!frame->has_value()) continue;
    EXPECT_EQ(FrameType::kData, (**frame).type);
    EXPECT_EQ(Bytes(sizes[next++], std::byte{5}), (**frame).payload);
  }
  EXPECT_FALSE(pair.near.wants_write());
}

TEST(Stream, RefusesALengthAboveItsLimitAndAnUnknownType) {
  Pair pair(100);
  pair.near.queue(FrameType::kData, payload(101));
  ASSERT_TRUE(pair.near.flush().ok());
  EXPECT_EQ(Code::kDataError, pair.far.read().status().code());

  Pair other(100);
  ASSERT_EQ(12, ::send(other.near.fd(), "HTTP/1.1 200", 12, 0));
  EXPECT_EQ(Code::kDataError, other.far.read().status().code());
}

TEST(Stream, ReportsAnEndInsideAndBetweenFrames) {
  Pair pair(100);
  ASSERT_EQ(3, ::send(pair.near.fd(), "\x03\0\0", 3, 0));
  pair.near = FrameStream();
  EXPECT_EQ(Code::kRemoteError, pair.far.read().status().code());
  Pair other(100);
  other.near = FrameStream();
  EXPECT_EQ(Code::kRemoteError, other.far.read().status().code());
  other.far.queue(FrameType::kData, payload(1));
  EXPECT_EQ(Code::kRemoteError, other.far.flush().code()) << "and no signal";
}

}  // namespace
}  // namespace onebit::bootstrap
