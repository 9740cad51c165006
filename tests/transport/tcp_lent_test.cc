// What is lent to the kernel by MSG_ZEROCOPY comes back once, whatever calls it took.
#include "transport/tcp/tcp_lent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <vector>

#include "base/unique_fd.h"

namespace onebit::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two ends of a TCP connection over loopback, with a small send buffer.
struct Connection {
  UniqueFd sender;
  UniqueFd receiver;

  Connection() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), name, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), name, &length), 0);
    sender.reset(::socket(AF_INET, SOCK_STREAM, 0));
    const int small = 32 << 10;
    EXPECT_EQ(setsockopt(sender.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    EXPECT_EQ(::connect(sender.get(), name, length), 0);
    receiver.reset(::accept(listener.get(), nullptr, nullptr));
  }

  /// Sends some of the bytes; returns how many.
  std::size_t lend(const std::byte* data, std::size_t bytes) const {
    const ssize_t put = ::send(sender.get(), data, bytes, MSG_ZEROCOPY | MSG_DONTWAIT);
    return put > 0 ? static_cast<std::size_t>(put) : 0;
  }
  void receive(std::size_t bytes) const {
    std::vector<std::byte> sink(bytes);
    EXPECT_EQ(::recv(receiver.get(), sink.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }
  /// Waits until the kernel has something to report.
  void wait() const {
    pollfd what{sender.get(), 0, 0};
    EXPECT_EQ(::poll(&what, 1, 10'000), 1);
  }
};

TEST(LentPayloads, OnlyMessagesOfTheSizeAreWanted) {
  const Connection connection;
  LentPayloads lent;
  EXPECT_FALSE(lent.wants(1 << 20));
  ASSERT_TRUE(lent.enable(connection.sender.get(), 4096));
  EXPECT_FALSE(lent.wants(4095));
  EXPECT_TRUE(lent.wants(4096));
  LentPayloads never;
  EXPECT_FALSE(never.enable(connection.sender.get(), 0));
}

TEST(LentPayloads, APayloadOfManyCallsComesBackOnceAndOnlyAsAWhole) {
  const Connection connection;
  LentPayloads lent;
  ASSERT_TRUE(lent.enable(connection.sender.get(), 1));
  Request request;
  const std::vector<std::byte> data(1 << 20);
  std::vector<LentPayloads::Payload> returned;
  std::size_t sent = 0;
  int calls = 0;
  while (sent < data.size()) {
    const std::size_t put = connection.lend(data.data() + sent, data.size() - sent);
    if (put == 0) continue;
    lent.add_call({&request, 1 << 20});
    ++calls;
    sent += put;
    connection.receive(put);
    lent.take_returned(connection.sender.get(), returned);
    EXPECT_THAT(returned, IsEmpty()) << "not all of it is with the kernel yet";
  }
  EXPECT_GT(calls, 1);
  if (!lent.close()) {
    while (returned.empty()) {
      connection.wait();
      lent.take_returned(connection.sender.get(), returned);
    }
    ASSERT_EQ(returned.size(), 1U);
    EXPECT_EQ(returned[0].request, &request);
    EXPECT_EQ(returned[0].bytes, 1U << 20);
  }
  EXPECT_TRUE(lent.empty());
}

TEST(LentPayloads, EachComesBackAndThoseThatWereNotLentAreNotWaitedFor) {
  const Connection connection;
  LentPayloads lent;
  ASSERT_TRUE(lent.enable(connection.sender.get(), 1));
  std::array<Request, 8> requests;
  const std::vector<std::byte> data(1024);
  std::vector<LentPayloads::Payload> returned;
  std::vector<Request*> back;
  for (Request& request : requests) {
    EXPECT_TRUE(lent.close()) << "nothing is under way";
    ASSERT_EQ(connection.lend(data.data(), data.size()), data.size());
    lent.add_call({&request, 1024});
    EXPECT_FALSE(lent.close());
    connection.receive(data.size());
  }
  while (!lent.empty()) {
    connection.wait();
    returned.clear();
    lent.take_returned(connection.sender.get(), returned);
    for (const auto& payload : returned) back.push_back(payload.request);
  }
  EXPECT_THAT(back, ElementsAre(&requests[0], &requests[1], &requests[2], &requests[3], &requests[4],
                                &requests[5], &requests[6], &requests[7]));
}

TEST(LentPayloads, NothingIsLentAnyMoreWhereTheKernelCopiesAllTheSame) {
  const Connection connection;
  LentPayloads lent;
  ASSERT_TRUE(lent.enable(connection.sender.get(), 1));
  Request request;
  const std::vector<std::byte> data(1024);
  std::vector<LentPayloads::Payload> returned;
  int calls = 0;
  while (lent.wants(1024) && calls < 1000) {  // loopback copies
    ASSERT_EQ(connection.lend(data.data(), data.size()), data.size());
    ++calls;
    lent.add_call({&request, 1024});
    static_cast<void>(lent.close());
    connection.receive(data.size());
    if (!lent.empty()) connection.wait();
    lent.take_returned(connection.sender.get(), returned);
  }
  EXPECT_LT(calls, 1000);
  while (!lent.empty()) {
    connection.wait();
    lent.take_returned(connection.sender.get(), returned);
  }
  EXPECT_EQ(returned.size(), static_cast<std::size_t>(calls));
}

TEST(LentPayloads, WhatIsDroppedIsNamed) {
  const Connection connection;
  LentPayloads lent;
  ASSERT_TRUE(lent.enable(connection.sender.get(), 1));
  Request request;
  const std::vector<std::byte> data(1024);
  ASSERT_EQ(connection.lend(data.data(), data.size()), data.size());
  lent.add_call({&request, 1024});
  EXPECT_FALSE(lent.close());
  std::vector<LentPayloads::Payload> dropped;
  lent.drop(dropped);
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].request, &request);
  EXPECT_TRUE(lent.empty());
}

}  // namespace
}  // namespace onebit::transport
