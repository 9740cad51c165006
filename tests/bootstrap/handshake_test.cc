// The handshake over socket pairs: what each end learns when the other is right, wrong, a stranger or a liar.
#include "bootstrap/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/unique_socket.h"

namespace onebit::bootstrap {
namespace {

using ::testing::HasSubstr;
using Step = Handshake::Step;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Pair {
  Pair() {
    std::array<int, 2> fds{};
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()));
    near = UniqueSocket(fds[0]);
    far = UniqueSocket(fds[1]);
  }
  UniqueSocket near, far;
};

const Key kKey = derive_key("a secret", "test");
const Key kOtherKey = derive_key("another secret", "test");

enum class Way { kToServer, kToClient };

/// A client and a server with a wire between them that the test controls.
struct Session {
  Key client_key = kKey;
  Key server_key = kKey;
  Purpose client_purpose = Purpose::kRendezvous;
  Purpose server_purpose = Purpose::kRendezvous;
  std::string hello = "I am rank 3";
  std::string reply = "welcome";
  std::string refusal;                                             // not empty: the server refuses
  std::size_t step = 4096;                                         // bytes that the wire carries at a time
  std::function<void(Way, std::size_t, char&)> tamper;             // with the offset in its direction
  std::size_t cut_to_server = SIZE_MAX, cut_to_client = SIZE_MAX;  // the wire breaks after so many bytes

  Status client = Status(Code::kTimeout, "unfinished");
  Status server = Status(Code::kTimeout, "unfinished");
  std::string heard_by_client, heard_by_server;
  std::string to_server, to_client;  // what crossed the wire
  bool refused = false;

  void run() {
    Pair c, s;
    Handshake client_end(c.near.get(), Role::kClient, client_key, client_purpose, bytes_of(hello));
    Handshake server_end(s.near.get(), Role::kServer, server_key, server_purpose);
    bool client_runs = true, server_runs = true;
    for (int i = 0; i < 20000 && (client_runs || server_runs); ++i) {
      if (client_runs) client_runs = go(client_end, c.near, client, heard_by_client);
      if (server_runs) server_runs = go(server_end, s.near, server, heard_by_server);
      carry(Way::kToServer, c.far, s.far, to_server, cut_to_server);
      carry(Way::kToClient, s.far, c.far, to_client, cut_to_client);
    }
    refused = client_end.refused();
  }

 private:
  bool go(Handshake& end, UniqueSocket& socket, Status& outcome, std::string& heard) {
    const auto step_taken = end.advance();
    if (!step_taken.ok()) {
      outcome = step_taken.status();
      EXPECT_EQ(outcome.message(), end.advance().status().message()) << "the error stays";
      socket.reset();
      return false;
    }
    if (*step_taken == Step::kWantAnswer) {
      heard = text_of(end.peer_payload());
      refusal.empty() ? end.answer(bytes_of(reply)) : end.refuse(refusal);
    }
    if (*step_taken != Step::kDone) return true;
    heard = text_of(end.peer_payload());
    outcome = Status();
    return false;
  }
  void carry(Way way, UniqueSocket& from, UniqueSocket& to, std::string& log, std::size_t cut) {
    if (!from || !to) return;
    std::string buffer(std::min(step, cut - log.size()), '\0');
    const ssize_t got = buffer.empty() ? 0 : ::recv(from.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) ::shutdown(to.get(), SHUT_WR);
    buffer.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    for (char& byte : buffer) {
      if (tamper) tamper(way, log.size(), byte);
      log += byte;
    }
    ::send(to.get(), buffer.data(), buffer.size(), MSG_NOSIGNAL);
  }
};

TEST(Handshake, BothEndsLearnTheOthersPayload) {
  Session session;
  session.run();
  EXPECT_TRUE(session.client.ok()) << session.client.message();
  EXPECT_TRUE(session.server.ok()) << session.server.message();
  EXPECT_EQ("I am rank 3", session.heard_by_server);
  EXPECT_EQ("welcome", session.heard_by_client);
}

TEST(Handshake, WorksByteByByteAndWithPayloadsOfEverySizeUpToTheLimit) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256}, kMaxHandshakePayload}) {
    Session session;
    session.step = 1;
    session.hello = std::string(size, 'h');
    session.reply = std::string(size, 'r');
    session.run();
    EXPECT_TRUE(session.client.ok()) << session.client.message();
    EXPECT_TRUE(session.server.ok()) << session.server.message();
    EXPECT_EQ(session.hello, session.heard_by_server);
    EXPECT_EQ(session.reply, session.heard_by_client);
  }
}

TEST(Handshake, RefusesAPayloadAboveTheLimitOnTheSendersSide) {
  Session client_side;
  client_side.hello = std::string(kMaxHandshakePayload + 1, 'h');
  client_side.run();
  EXPECT_EQ(Code::kInvalidArgument, client_side.client.code());
  EXPECT_FALSE(client_side.server.ok());

  Session server_side;
  server_side.reply = std::string(kMaxHandshakePayload + 1, 'r');
  server_side.run();
  EXPECT_EQ(Code::kInvalidArgument, server_side.server.code());
  EXPECT_FALSE(server_side.client.ok());
}

TEST(Handshake, ReadsNothingOfWhatFollows) {
  Pair pair;
  Handshake client(pair.near.get(), Role::kClient, kKey, Purpose::kTransport, bytes_of("hello"));
  Handshake server(pair.far.get(), Role::kServer, kKey, Purpose::kTransport);
  while (*server.advance() != Step::kWantAnswer) ASSERT_TRUE(client.advance().ok());
  server.answer(bytes_of("yes"));
  ASSERT_EQ(Step::kDone, *server.advance());
  ASSERT_EQ(4, ::send(pair.far.get(), "next", 4, 0));  // right behind the answer
  ASSERT_EQ(Step::kDone, *client.advance());
  ASSERT_EQ(5, ::send(pair.near.get(), "first", 5, 0));
  ASSERT_EQ(Step::kDone, *server.advance());
  std::array<char, 16> buffer{};
  EXPECT_EQ(4, ::recv(pair.near.get(), buffer.data(), buffer.size(), 0));
  EXPECT_EQ(5, ::recv(pair.far.get(), buffer.data(), buffer.size(), 0));
}

TEST(Handshake, RefusesEveryChangedByte) {
  Session good;
  good.run();
  for (const Way way : {Way::kToServer, Way::kToClient}) {
    const std::size_t length = way == Way::kToServer ? good.to_server.size() : good.to_client.size();
    for (std::size_t at = 0; at < length; ++at) {
      for (const int flip : {0x01, 0x80}) {
        Session session;
        session.tamper = [&](Way direction, std::size_t offset, char& byte) {
          if (direction == way && offset == at) byte = static_cast<char>(byte ^ flip);
        };
        session.run();
        // The server cannot see damage to its own last message; everything else, it must.
        EXPECT_FALSE(session.client.ok()) << "byte " << at << " of way " << static_cast<int>(way);
        EXPECT_EQ("", session.heard_by_client);
        if (way == Way::kToServer) {
          EXPECT_FALSE(session.server.ok()) << "byte " << at;
          EXPECT_EQ("", session.heard_by_server);
        }
      }
    }
  }
}

TEST(Handshake, ReportsACutAtEveryByte) {
  Session good;
  good.run();
  for (std::size_t cut = 0; cut < good.to_server.size(); ++cut) {
    Session session;
    session.cut_to_server = cut;
    session.run();
    EXPECT_EQ(Code::kRemoteError, session.server.code()) << cut << ": " << session.server.message();
    EXPECT_FALSE(session.client.ok());
  }
  for (std::size_t cut = 0; cut < good.to_client.size(); ++cut) {
    Session session;
    session.cut_to_client = cut;
    session.run();
    EXPECT_EQ(Code::kRemoteError, session.client.code()) << cut << ": " << session.client.message();
  }
}

TEST(Handshake, TellsBothEndsThatTheirVersionsDiffer) {
  Session session;
  session.tamper = [](Way, std::size_t offset, char& byte) {
    if (offset == 8) byte = 9;  // each end believes that the other speaks version 9
  };
  session.run();
  const std::string ours = formatted("this library version {}", kHandshakeVersion);
  for (const Status& status : {session.client, session.server}) {
    EXPECT_EQ(Code::kInvalidUsage, status.code());
    EXPECT_THAT(status.message(), HasSubstr("version 9"));
    EXPECT_THAT(status.message(), HasSubstr(ours));
  }
}

TEST(Handshake, TellsBothEndsThatTheirKeysDiffer) {
  Session session;
  session.server_key = kOtherKey;
  session.run();
  for (const Status& status : {session.client, session.server}) {
    EXPECT_EQ(Code::kInvalidUsage, status.code()) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("another job or has another secret"));
  }
  EXPECT_EQ("", session.heard_by_server);
  EXPECT_EQ(std::string::npos, session.to_server.find("rank 3")) << "nothing is told before the proof";
  EXPECT_FALSE(session.refused) << "an end without the key cannot refuse for good";
}

TEST(Handshake, TellsBothEndsThatTheirPurposesDiffer) {
  Session session;
  session.client_purpose = Purpose::kTransport;
  session.run();
  for (const Status& status : {session.client, session.server}) {
    EXPECT_EQ(Code::kInvalidUsage, status.code());
    EXPECT_THAT(status.message(), HasSubstr("data"));
    EXPECT_THAT(status.message(), HasSubstr("rendezvous"));
  }
}

TEST(Handshake, HandsTheServersReasonToTheClient) {
  Session session;
  session.refusal = "rank 3 is taken";
  session.run();
  EXPECT_EQ(Code::kRemoteError, session.client.code());
  EXPECT_THAT(session.client.message(), HasSubstr("rank 3 is taken"));
  EXPECT_TRUE(session.refused);
  EXPECT_EQ(Code::kInvalidUsage, session.server.code());

  Session with_long_reason;
  with_long_reason.refusal = std::string(2000, 'x');
  with_long_reason.run();
  EXPECT_THAT(with_long_reason.client.message(), HasSubstr(std::string(kMaxHandshakePayload, 'x')));
}

/// What a server makes of `input`, followed by the end of the stream if `then_close`.
Status server_meets(std::string_view input, bool then_close, std::string* answer = nullptr) {
  Pair pair;
  Handshake server(pair.near.get(), Role::kServer, kKey, Purpose::kRendezvous);
  EXPECT_EQ(static_cast<ssize_t>(input.size()), ::send(pair.far.get(), input.data(), input.size(), 0));
  if (then_close) ::shutdown(pair.far.get(), SHUT_WR);
  const auto step = server.advance();
  if (answer != nullptr) {
    answer->resize(4096);
    const ssize_t got = ::recv(pair.far.get(), answer->data(), answer->size(), 0);
    answer->resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  return step.ok() ? Status() : step.status();
}

TEST(Handshake, DropsStrangersAtTheFirstBytesWithoutAWord) {
  using namespace std::string_view_literals;
  for (const std::string_view stranger :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n"sv, "GE"sv, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"sv,
        "SSH-2.0-OpenSSH_9.2\r\n"sv, "\0\0\0\0\0\0\0\0"sv, "\xff"sv, "\xB1onebiT\n"sv}) {
    for (const bool then_close : {false, true}) {
      std::string answer;
      const Status status = server_meets(stranger, then_close, &answer);
      EXPECT_EQ(Code::kDataError, status.code()) << stranger << ": " << status.message();
      EXPECT_EQ("", answer);
    }
  }
  EXPECT_TRUE(server_meets("", false).ok()) << "silence is no error yet";
  EXPECT_EQ(Code::kRemoteError, server_meets("", true).code());
}

TEST(Handshake, AClientDropsAStrangersServerAtTheFirstBytes) {
  Pair pair;
  Handshake client(pair.near.get(), Role::kClient, kKey, Purpose::kRendezvous);
  ASSERT_EQ(4, ::send(pair.far.get(), "HTTP", 4, 0));
  EXPECT_EQ(Code::kDataError, client.advance().status().code());
}

TEST(Handshake, RefusesAnAnnouncedLengthAboveTheLimit) {
  Session session;
  session.tamper = [](Way way, std::size_t offset, char& byte) {
    if (way == Way::kToServer && offset == 46) byte = static_cast<char>(0xFF);  // high byte of the length
  };
  session.run();
  EXPECT_EQ(Code::kDataError, session.server.code());
  EXPECT_THAT(session.server.message(), HasSubstr("above the limit"));
}

TEST(Handshake, RefusesItsOwnMessagesReflected) {
  Pair pair;
  Handshake client(pair.near.get(), Role::kClient, kKey, Purpose::kRendezvous);
  ASSERT_EQ(Step::kWantRead, *client.advance());
  std::array<char, 4096> buffer{};
  const ssize_t got = ::recv(pair.far.get(), buffer.data(), buffer.size(), 0);
  ASSERT_EQ(got, ::send(pair.far.get(), buffer.data(), static_cast<std::size_t>(got), 0));
  EXPECT_EQ(Code::kDataError, client.advance().status().code());
}

TEST(Handshake, RefusesTheServersOwnProofAsTheClients) {
  Session good;
  good.run();
  Pair pair;
  Handshake server(pair.near.get(), Role::kServer, kKey, Purpose::kRendezvous);
  ASSERT_EQ(44, ::send(pair.far.get(), good.to_server.data(), 44, 0));
  ASSERT_EQ(Step::kWantRead, *server.advance());
  std::array<char, 76> hello{};
  ASSERT_EQ(76, ::recv(pair.far.get(), hello.data(), hello.size(), 0));
  const std::string message = std::string("\x03\0\0", 3) + std::string(hello.data() + 44, 32);
  ASSERT_EQ(35, ::send(pair.far.get(), message.data(), message.size(), 0));
  EXPECT_EQ(Code::kInvalidUsage, server.advance().status().code());
}

TEST(Handshake, RefusesARecordedClientAndARecordedServer) {
  Session good;
  good.run();
  EXPECT_EQ(Code::kInvalidUsage, server_meets(good.to_server, false).code());

  Pair pair;
  Handshake client(pair.near.get(), Role::kClient, kKey, Purpose::kRendezvous);
  ASSERT_EQ(static_cast<ssize_t>(good.to_client.size()),
            ::send(pair.far.get(), good.to_client.data(), good.to_client.size(), 0));
  EXPECT_EQ(Code::kInvalidUsage, client.advance().status().code());
}

TEST(Handshake, SurvivesAnOtherEndThatIsGoneWithoutASignal) {
  Pair pair;
  Handshake client(pair.near.get(), Role::kClient, kKey, Purpose::kRendezvous);
  pair.far.reset();
  EXPECT_EQ(Code::kRemoteError, client.advance().status().code());
}

TEST(Key, IsRandomOrAFunctionOfItsText) {
  EXPECT_NE(random_key(), random_key());
  EXPECT_EQ(derive_key("s", "c"), derive_key("s", "c"));
  EXPECT_NE(derive_key("s", "c"), derive_key("s", "d"));
  EXPECT_NE(derive_key("s", "c"), derive_key("t", "c"));
  EXPECT_NE(derive_key("sc", ""), derive_key("s", "c"));
  EXPECT_NE(derive_key("", "c"), derive_key(std::string(1000, 'x'), "c"));
}

}  // namespace
}  // namespace onebit::bootstrap
