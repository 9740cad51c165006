// A peer that dies in each state of a connection: the other end learns of it at once, and why where that is
// known.
#include <gmock/gmock.h>

#include <cstring>

#include "net_pair.h"
#include "support/child.h"

namespace onebit::nccl_net::test {
namespace {

using onebit::testing::Child;

using Handle = std::array<std::byte, abi::kHandleBytes>;
constexpr auto kPrompt = std::chrono::seconds(5);

/// This process listens, a child connects and then does as it is told.
struct Deaths : EachVersion {
  Communicator here{net};
  Handle handle{};
  void* listening = nullptr;
  void* receiver = nullptr;
  Deaths() { EXPECT_EQ(net.listen(here.ctx(), 0, handle.data(), &listening), Result::kSuccess); }
  ~Deaths() override {
    net.close_listen(listening);
    if (receiver != nullptr) net.close_receive(receiver);
  }
  using Body = std::function<int(void* sender)>;
  std::unique_ptr<Child> connect_child(const Body& body) {
    auto child = std::make_unique<Child>([&] {
      const Communicator there(net);
      void* sender = nullptr;
      if (!until([&] {
            return net.connect(there.ctx(), 0, handle.data(), &sender) != Result::kSuccess ||
                   sender != nullptr;
          })) {
        return 90;
      }
      return sender == nullptr ? 91 : body(sender);
    });
    EXPECT_TRUE(until([&] {
      EXPECT_EQ(net.accept(listening, &receiver), Result::kSuccess) << take_log();
      return receiver != nullptr || HasFailure();
    }));
    return child;
  }
  void* receive(void* data, std::size_t size) {
    void *request = nullptr, *mhandle = nullptr;
    int tag = 0;
    EXPECT_EQ(net.irecv(receiver, {&data, 1}, {&size, 1}, {&tag, 1}, {&mhandle, 1}, &request),
              Result::kSuccess);
    return request;
  }
  static int idle(void* /*sender*/) {
    ::sleep(60);
    return 0;
  }
};
ONEBIT_EACH_VERSION(Deaths);

TEST_P(Deaths, OfAnIdlePeerFailsAPostedReceive) {
  auto child = connect_child(idle);
  int value = 0;
  Pending posted(net, receive(&value, sizeof value));
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(posted.poll());
  child->signal(SIGKILL);
  ASSERT_TRUE(until([&] { return posted.poll(); }, kPrompt));
  EXPECT_EQ(posted.result, Result::kRemoteError);
  EXPECT_THAT(take_log(), ::testing::HasSubstr("receive from 127.0.0.1:"));
  void *data = &value, *request = &value, *mhandle = nullptr;
  std::size_t size = sizeof value;
  int tag = 0;
  EXPECT_EQ(net.irecv(receiver, {&data, 1}, {&size, 1}, {&tag, 1}, {&mhandle, 1}, &request),
            Result::kRemoteError)
      << "and so does every later call";
  EXPECT_EQ(request, nullptr);
}

TEST_P(Deaths, OfASenderInTheMiddleOfAMessageFailsTheReceive) {
  constexpr std::size_t kBytes = 64 << 20;
  auto child = connect_child([&](void* sender) {
    std::vector<std::byte> bytes(kBytes);
    void* request = nullptr;
    if (net.isend(sender, bytes.data(), kBytes, 0, nullptr, &request) != Result::kSuccess) return 1;
    return idle(sender);  // what the sockets took is all that comes
  });
  std::vector<std::byte> got(kBytes);
  Pending posted(net, receive(got.data(), kBytes));
  for (int i = 0; i < 200; ++i) ASSERT_FALSE(posted.poll());
  child->signal(SIGKILL);
  ASSERT_TRUE(until([&] { return posted.poll(); }, kPrompt));
  EXPECT_EQ(posted.result, Result::kRemoteError);
}

TEST_P(Deaths, OfAReceiverFailsTheSend) {
  Child child([&] {  // the one that listens, and reads nothing
    const Communicator there(net);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  Child listener([&] {
    const Communicator there(net);
    Handle theirs{};
    void *door = nullptr, *comm = nullptr;
    if (net.listen(there.ctx(), 0, theirs.data(), &door) != Result::kSuccess) return 1;
    if (::write(pipe[1], theirs.data(), theirs.size()) != static_cast<ssize_t>(theirs.size())) return 2;
    until([&] { return net.accept(door, &comm) != Result::kSuccess || comm != nullptr; });
    return idle(comm);
  });
  Handle theirs{};
  ASSERT_EQ(::read(pipe[0], theirs.data(), theirs.size()), static_cast<ssize_t>(theirs.size()));
  void* sender = nullptr;
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(net.connect(here.ctx(), 0, theirs.data(), &sender), Result::kSuccess);
    return sender != nullptr || HasFailure();
  }));
  std::vector<std::byte> bytes(64 << 20);
  void* request = nullptr;
  ASSERT_EQ(net.isend(sender, bytes.data(), bytes.size(), 0, nullptr, &request), Result::kSuccess);
  Pending sending(net, request);
  for (int i = 0; i < 200; ++i) ASSERT_FALSE(sending.poll());
  listener.signal(SIGKILL);
  ASSERT_TRUE(until([&] { return sending.poll(); }, kPrompt));
  EXPECT_EQ(sending.result, Result::kRemoteError);
  EXPECT_EQ(net.close_send(sender), Result::kSuccess);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_P(Deaths, OfTheListenerBeforeTheConnectIsAnErrorAfterTheRetries) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  Child listener([&] {
    const Communicator there(net);
    Handle theirs{};
    void* door = nullptr;
    if (net.listen(there.ctx(), 0, theirs.data(), &door) != Result::kSuccess) return 1;
    return ::write(pipe[1], theirs.data(), theirs.size()) == static_cast<ssize_t>(theirs.size()) ? 0 : 2;
  });
  EXPECT_EQ(listener.wait(), 0);
  Handle theirs{};
  ASSERT_EQ(::read(pipe[0], theirs.data(), theirs.size()), static_cast<ssize_t>(theirs.size()));
  void* sender = nullptr;
  Result result = Result::kSuccess;
  ASSERT_TRUE(until([&] {
    result = net.connect(here.ctx(), 0, theirs.data(), &sender);
    return result != Result::kSuccess;
  }));
  EXPECT_EQ(result, Result::kRemoteError);
  const std::string log = take_log();
  EXPECT_THAT(log, ::testing::HasSubstr("next try in 5 ms"));
  EXPECT_THAT(log, ::testing::HasSubstr("after 4 tries"));
  EXPECT_THAT(log, ::testing::HasSubstr("refused"));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_P(Deaths, InTheMiddleOfTheHandshakeLeavesTheListenerInService) {
  {
    Child child([&] {
      const Communicator there(net);
      void* sender = nullptr;
      return net.connect(there.ctx(), 0, handle.data(), &sender) == Result::kSuccess ? 0 : 1;
    });  // nobody accepts yet: it ends half connected
    EXPECT_EQ(child.wait(), 0);
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(net.accept(listening, &receiver), Result::kSuccess) << take_log();
    ASSERT_EQ(receiver, nullptr);
  }
  auto child = connect_child(idle);
  EXPECT_NE(receiver, nullptr);
}

TEST_P(Deaths, OfAPeerThatHasSentAllAndClosedLosesNothing) {
  const auto sent = pattern(8 << 20, 3);
  auto child = connect_child([&](void* sender) {
    void* request = nullptr;
    if (net.isend(sender, const_cast<std::byte*>(sent.data()), sent.size(), 0, nullptr, &request) !=
        Result::kSuccess) {
      return 1;
    }
    Pending sending(net, request);
    if (!complete({&sending})) return 2;
    net.close_send(sender);
    std::exit(0);  // as a program ends, right after it has closed
  });
  std::vector<std::byte> got(sent.size());
  Pending posted(net, receive(got.data(), got.size()));
  ASSERT_TRUE(complete({&posted}));
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(child->wait(), 0);
}

TEST_P(Deaths, AnEndThatClosesWithRequestsInFlightTellsThePeer) {
  auto child = connect_child([&](void* sender) {
    std::vector<std::byte> bytes(64 << 20);
    void* request = nullptr;
    if (net.isend(sender, bytes.data(), bytes.size(), 0, nullptr, &request) != Result::kSuccess) return 1;
    net.close_send(sender);  // as NCCL does after an abort
    return idle(sender);
  });
  std::vector<std::byte> got(64 << 20);
  Pending posted(net, receive(got.data(), got.size()));
  ASSERT_TRUE(until([&] { return posted.poll(); }, kPrompt));
  EXPECT_EQ(posted.result, Result::kRemoteError);
}

/// Before anything reads the settings.
struct FewRetries : ::testing::Environment {
  void SetUp() override {
    ::setenv("NCCL_SOCKET_RETRY_CNT", "3", 1);
    ::setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "5", 1);
  }
};
const auto* const few_retries = ::testing::AddGlobalTestEnvironment(new FewRetries);

}  // namespace
}  // namespace onebit::nccl_net::test
