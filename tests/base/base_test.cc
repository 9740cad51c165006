// Status, addresses and sockets, deadlines, the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "base/deadline.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/types.h"
#include "base/unique_fd.h"

namespace onebit {
namespace {

using ::testing::HasSubstr;

TEST(Status, IsOkWithoutAMessageOrAnErrorWithOne) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ("", Status().message());
  EXPECT_TRUE(Status(Code::kOk, "ignored").ok());
  const Status error = Status::error(Code::kTimeout, "rank {} is late", 3);
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(Code::kTimeout, error.code());
  EXPECT_EQ("rank 3 is late", error.message());
  EXPECT_EQ("bind to x: Permission denied", Status::system(EACCES, "bind to x").message());
  EXPECT_EQ(Code::kSystemError, Status::system(EACCES, "bind").code());
  EXPECT_THAT(Status::system(EMFILE, "getifaddrs").message(), HasSubstr("ulimit -n"));
}

TEST(Status, ContextComesBeforeTheMessageAndChangesNoCode) {
  const Status error = Status(Code::kDataError, "bad").with_context("file x");
  EXPECT_EQ("file x: bad", error.message());
  EXPECT_EQ(Code::kDataError, error.code());
  EXPECT_TRUE(Status().with_context("file x").ok());
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(Code::kDataError); ++code) {
    EXPECT_NE("unknown error", code_name(static_cast<Code>(code))) << code;
  }
}

Result<int> half(int number) {
  if (number % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return number / 2;
}
Result<int> quarter(int number) {
  ONEBIT_ASSIGN_OR_RETURN(const int once, half(number));
  ONEBIT_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}
TEST(Result, IsAValueOrTheStatusThatSaysWhyThereIsNone) {
  EXPECT_EQ(3, *quarter(12));
  EXPECT_TRUE(quarter(12).status().ok());
  EXPECT_EQ("odd", quarter(10).status().message());
}

SocketAddress address(std::string_view host, std::uint16_t port) {
  const auto found = resolve(host, port, SocketFamily::kAny);
  EXPECT_TRUE(found.ok()) << host;
  return found.ok() ? found->front() : SocketAddress();
}

TEST(SocketAddress, IsWrittenTheWayPeopleWriteIt) {
  EXPECT_EQ("10.0.0.1:29500", address("10.0.0.1", 29500).to_string());
  EXPECT_EQ("[fd00::1]:80", address("fd00::1", 80).to_string());
  EXPECT_EQ("10.0.0.1", address("10.0.0.1", 29500).host());
  EXPECT_EQ("fd00::1", address("fd00::1", 80).host());
  EXPECT_EQ("(no address)", SocketAddress().to_string());
  EXPECT_EQ("(no address)", SocketAddress().host());
  EXPECT_FALSE(SocketAddress().valid());
}

TEST(SocketAddress, KnowsItsKind) {
  EXPECT_TRUE(address("127.3.2.1", 0).is_loopback());
  EXPECT_TRUE(address("::1", 0).is_loopback());
  EXPECT_FALSE(address("10.0.0.1", 0).is_loopback());
  EXPECT_TRUE(address("169.254.1.1", 0).is_link_local());
  EXPECT_TRUE(address("fe80::1", 0).is_link_local());
  EXPECT_FALSE(address("192.168.1.1", 0).is_link_local());
  EXPECT_TRUE(address("0.0.0.0", 0).is_any());
  EXPECT_TRUE(address("::", 0).is_any());
}

TEST(SocketAddress, ComparesAddressAndPort) {
  EXPECT_EQ(address("10.0.0.1", 1), address("10.0.0.1", 1));
  EXPECT_FALSE(address("10.0.0.1", 1) == address("10.0.0.1", 2));
  EXPECT_FALSE(address("10.0.0.1", 1) == address("10.0.0.2", 1));
  EXPECT_FALSE(address("::1", 1) == address("127.0.0.1", 1));
}

TEST(Sockets, ResolveKeepsToTheFamily) {
  EXPECT_EQ(AF_INET, address("127.0.0.1", 1).family());
  EXPECT_EQ(Code::kSystemError, resolve("10.0.0.1", 1, SocketFamily::kIPv6).status().code());
  EXPECT_THAT(resolve("not a host", 1, SocketFamily::kAny).status().message(), HasSubstr("not a host"));
}

TEST(Sockets, ConnectAcceptAndReportTheOtherEnd) {
  const auto listener = listen_on(address("127.0.0.1", 0), {});
  ASSERT_TRUE(listener.ok());
  SocketAddress peer;
  const auto none = accept_from(listener->get(), &peer);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none) << "nobody has come";
  const SocketAddress where = *local_address(listener->get());
  const auto client = start_connect(where, address("127.0.0.2", 0));
  ASSERT_TRUE(client.ok()) << client.status().message();
  pollfd entry{client->get(), POLLOUT, 0};
  ASSERT_EQ(1, ::poll(&entry, 1, 10'000));
  EXPECT_EQ(0, connect_error(client->get()));
  const auto server = accept_from(listener->get(), &peer);
  ASSERT_TRUE(server.ok());
  ASSERT_TRUE(*server);
  EXPECT_EQ("127.0.0.2", peer.host()) << "the source address that was asked for";
  EXPECT_TRUE(tune_tcp(client->get(), std::chrono::seconds(30), 1 << 20, 1 << 20).ok());
}

TEST(Sockets, ATrafficClassIsThatOfTheSocketsFamily) {
  struct Family {
    int domain, level, option;
  };
  for (const Family& family : {Family{AF_INET, IPPROTO_IP, IP_TOS}, {AF_INET6, IPPROTO_IPV6, IPV6_TCLASS}}) {
    const UniqueFd fd(::socket(family.domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) GTEST_SKIP() << "this machine has no sockets of family " << family.domain;
    for (const std::uint32_t asked : {0U, 0x20U, 0xB8U}) {  // 0 leaves it as it is
      ASSERT_TRUE(tune_tcp(fd.get(), std::chrono::seconds(30), 0, 0, asked).ok());
      int value = -1;
      socklen_t length = sizeof value;
      ASSERT_EQ(0, ::getsockopt(fd.get(), family.level, family.option, &value, &length));
      EXPECT_EQ(static_cast<int>(asked), value);
    }
  }
}

TEST(Sockets, APortRangeIsKeptAndItsExhaustionNamed) {
  const auto first = listen_on(address("127.0.0.1", 0), {});
  ASSERT_TRUE(first.ok());
  const std::uint16_t taken = local_address(first->get())->port();
  const auto none = listen_on(address("127.0.0.1", 0), {taken, taken});
  EXPECT_THAT(none.status().message(), HasSubstr(formatted("ONEBIT_PORT_RANGE={0}-{0}", taken)));
  EXPECT_THAT(listen_on(address("127.0.0.1", taken), {}).status().message(),
              HasSubstr(formatted("127.0.0.1:{}", taken)));
}

TEST(Deadline, GivesPollWhatIsLeft) {
  EXPECT_EQ(-1, Deadline::never().poll_timeout());
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(0, Deadline::after(std::chrono::milliseconds(-5)).poll_timeout());
  EXPECT_TRUE(Deadline::after(std::chrono::milliseconds(0)).passed());
  const int left = Deadline::after(std::chrono::seconds(100)).poll_timeout();
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 100'000);
  EXPECT_TRUE(Deadline::never().earlier(Deadline::after(std::chrono::milliseconds(0))).passed());
}

TEST(Log, WritesWhatTheLevelAllowsToStderr) {
  set_log_level(LogLevel::kWarn);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kWarn, "seen {}", 1);
  log(LogLevel::kInfo, "hidden {}", 2);
  std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("seen 1"));
  EXPECT_EQ(std::string::npos, text.find("hidden"));

  set_log_level(LogLevel::kNone);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kWarn, "hidden");
  EXPECT_EQ("", ::testing::internal::GetCapturedStderr());

  set_log_level(LogLevel::kTrace);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kTrace, "braces stay: {}", "{}");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("braces stay: {}"));
  set_log_level(LogLevel::kWarn);
}

TEST(Types, NamesReadBack) {
  for (const DataType type : {DataType::kInt32, DataType::kInt64, DataType::kFloat16, DataType::kFloat32,
                              DataType::kFloat64, DataType::kBFloat16}) {
    EXPECT_EQ(type, parse_data_type(name_of(type)));
    EXPECT_NE(0U, size_of(type));
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) EXPECT_EQ(op, parse_reduce_op(name_of(op)));
  EXPECT_FALSE(parse_data_type("quad").has_value());
  EXPECT_FALSE(parse_reduce_op("max").has_value());
}

}  // namespace
}  // namespace onebit
