// The rules of set-up: listen, connect and accept never wait, may be given up at any time, and may be
// repeated.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "base/settings.h"
#include "net_pair.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_handle.h"
#include "transport/transport.h"

namespace onebit::nccl_net::test {
namespace {

using Handle = std::array<std::byte, abi::kHandleBytes>;

struct Connections : EachVersion {
  Communicator a{net};
  Communicator b{net};
  void* listen(Handle& handle) {
    void* listening = nullptr;
    EXPECT_EQ(net.listen(b.ctx(), 0, handle.data(), &listening), Result::kSuccess) << take_log();
    return listening;
  }
  /// A message goes from one comm to the other.
  void expect_service(void* send_comm, void* receive_comm) {
    const auto sent = pattern(5000, 1);
    std::vector<std::byte> got(5000);
    void *send = nullptr, *receive = nullptr, *data = got.data(), *mhandle = nullptr;
    std::size_t size = got.size();
    int tag = 3;
    ASSERT_EQ(net.irecv(receive_comm, {&data, 1}, {&size, 1}, {&tag, 1}, {&mhandle, 1}, &receive),
              Result::kSuccess);
    ASSERT_EQ(net.isend(send_comm, const_cast<std::byte*>(sent.data()), sent.size(), 3, nullptr, &send),
              Result::kSuccess);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    Pending sending(net, send), receiving(net, receive);
    ASSERT_TRUE(complete({&sending, &receiving}));
    EXPECT_EQ(receiving.sizes[0], 5000);
    EXPECT_EQ(got, sent);
  }
};
ONEBIT_EACH_VERSION(Connections);

TEST_P(Connections, ListenReturnsACommAndAHandleAtOnce) {
  Handle handle{};
  void* const listening = listen(handle);
  EXPECT_NE(listening, nullptr);
  EXPECT_NE(handle, Handle{});
  EXPECT_EQ(net.close_listen(listening), Result::kSuccess);
}

TEST_P(Connections, ConnectAndAcceptReturnNullUntilThePeerHasDoneItsPart) {
  Handle handle{};
  void* const listening = listen(handle);
  void *send = &handle, *receive = &handle;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(net.accept(listening, &receive), Result::kSuccess);
    ASSERT_EQ(receive, nullptr) << "nobody has connected";
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
    ASSERT_EQ(send, nullptr) << "nobody has accepted";
  }
  ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive));
  expect_service(send, receive);
  EXPECT_EQ(net.close_send(send), Result::kSuccess);
  EXPECT_EQ(net.close_receive(receive), Result::kSuccess);
  EXPECT_EQ(net.close_listen(listening), Result::kSuccess);
}

TEST_P(Connections, AHandleCarriesNoStateOfAnAttemptOnceThatHasSucceeded) {
  Handle handle{};
  void* const listening = listen(handle);
  const Handle fresh = handle;
  void *send = nullptr, *receive = nullptr;
  ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive));
  EXPECT_EQ(handle, fresh);
  net.close_send(send);
  net.close_receive(receive);
  net.close_listen(listening);
}

TEST_P(Connections, OneListenerAcceptsSeveralConnectionsWhileTheFirstIsInUse) {
  Handle handle{};
  void* const listening = listen(handle);
  std::vector<void*> sends, receives;
  for (int i = 0; i < 3; ++i) {
    void *send = nullptr, *receive = nullptr;
    ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive));
    sends.push_back(send);
    receives.push_back(receive);
    for (std::size_t j = 0; j < sends.size(); ++j) expect_service(sends[j], receives[j]);
  }
  net.close_listen(listening);
  for (std::size_t j = 0; j < sends.size(); ++j) expect_service(sends[j], receives[j]);
  for (std::size_t j = 0; j < sends.size(); ++j) {
    net.close_send(sends[j]);
    net.close_receive(receives[j]);
  }
}

TEST_P(Connections, SeveralAttemptsGoOnAtOnceEachInItsOwnHandle) {
  constexpr std::size_t kCount = 12;
  std::vector<Handle> handles(kCount);
  std::vector<void*> listening, sends(kCount), receives(kCount);
  for (Handle& handle : handles) listening.push_back(listen(handle));
  ASSERT_TRUE(until([&] {
    bool all = true;
    for (std::size_t i = 0; i < kCount; ++i) {
      if (sends[i] == nullptr) {
        EXPECT_EQ(net.connect(a.ctx(), 0, handles[i].data(), &sends[i]), Result::kSuccess);
      }
      const std::size_t back = kCount - 1 - i;
      if (receives[back] == nullptr) {
        EXPECT_EQ(net.accept(listening[back], &receives[back]), Result::kSuccess);
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) all &= sends[i] != nullptr && receives[i] != nullptr;
    return all;
  }));
  for (std::size_t i = 0; i < kCount; ++i) expect_service(sends[i], receives[i]);
  for (std::size_t i = 0; i < kCount; ++i) {
    net.close_send(sends[i]);
    net.close_receive(receives[i]);
    net.close_listen(listening[i]);
  }
}

TEST_P(Connections, AForeignHandleIsAnErrorAndNoCrash) {
  for (const std::uint32_t seed : {0U, 1U, 2U}) {
    Handle handle{};
    const auto noise = pattern(handle.size(), seed);
    if (seed > 0) std::memcpy(handle.data(), noise.data(), noise.size());
    void* send = &handle;
    EXPECT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kInvalidArgument);
    EXPECT_EQ(send, nullptr);
  }
  EXPECT_THAT(take_log(), ::testing::HasSubstr("WARN"));
}

TEST_P(Connections, AHandleOfAnotherJobWithALeftOverAttemptStartsANewOne) {
  Handle ours{};
  void* const listening = listen(ours);
  void* send = nullptr;
  ASSERT_EQ(net.connect(a.ctx(), 0, ours.data(), &send), Result::kSuccess);
  ASSERT_EQ(send, nullptr);
  Handle theirs{};  // with the number of our attempt
  void* const other = listen(theirs);
  std::memcpy(theirs.data() + 120, ours.data() + 120, 8);
  void* receive = nullptr;
  ASSERT_TRUE(make_comms(a, 0, theirs.data(), other, send, receive));
  expect_service(send, receive);
  net.close_send(send);
  net.close_receive(receive);
  net.close_listen(listening);
  net.close_listen(other);
}

TEST_P(Connections, AHandleWithTheKeyOfAnotherJobIsRefusedAndTheListenerStaysInService) {
  Handle ours{}, theirs{};
  void* const listening = listen(ours);
  void* const other = listen(theirs);
  transport::Handle inner;
  std::memcpy(&inner, ours.data(), sizeof inner);
  auto contents = transport::decode_handle(inner);
  ASSERT_TRUE(contents.ok());
  std::memcpy(&inner, theirs.data(), sizeof inner);
  contents->key = transport::decode_handle(inner)->key;  // our port, their key
  inner = transport::encode_handle(*contents);
  Handle mixed{};
  std::memcpy(mixed.data(), &inner, sizeof inner);
  void *send = nullptr, *receive = nullptr;
  Result result = Result::kSuccess;
  ASSERT_TRUE(until([&] {
    result = net.connect(a.ctx(), 0, mixed.data(), &send);
    EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
    return result != Result::kSuccess || send != nullptr || receive != nullptr;
  }));
  EXPECT_EQ(result, Result::kInvalidUsage);
  EXPECT_EQ(send, nullptr);
  EXPECT_EQ(receive, nullptr);
  EXPECT_THAT(take_log(), ::testing::HasSubstr("the other end has another key"));
  net.close_listen(other);
  net.close_listen(listening);
  const Connection next(a, b);
  ASSERT_TRUE(next.made());
  expect_service(next.sender(), next.receiver());
}

TEST_P(Connections, APeerOfAnotherVersionOfThePluginIsRefusedAndToldSo) {
  Handle handle{};
  void* const listening = listen(handle);
  transport::Handle inner;
  std::memcpy(&inner, handle.data(), sizeof inner);
  const auto settings = Settings::from_environment();
  ASSERT_TRUE(settings.ok());
  const auto context = transport::make_tcp_context(*settings, SocketAddress());
  ASSERT_TRUE(context.ok());
  std::array<std::byte, 8> hello{};  // what another version might say
  const auto stranger = (*context)->connect(0, inner, hello);
  ASSERT_TRUE(stranger.ok());
  std::vector<transport::Request*> completed;
  void* receive = nullptr;
  ASSERT_TRUE(until([&] {
    EXPECT_TRUE((*context)->progress(std::chrono::milliseconds(0), completed).ok());
    EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
    EXPECT_EQ(receive, nullptr);
    return (*stranger)->state() == transport::Endpoint::State::kFailed || HasFailure();
  }));
  EXPECT_THAT((*stranger)->status().message(), ::testing::HasSubstr("of different versions"));
  EXPECT_THAT(take_log(), ::testing::HasSubstr("of different versions"));
  net.close_listen(listening);
}

TEST_P(Connections, MemoryOfTheHostIsRegisteredAndOtherMemoryIsRefused) {
  const Connection line(a, b);
  ASSERT_TRUE(line.made());
  int value = 0;
  void* mhandle = nullptr;
  EXPECT_EQ(net.register_memory(line.sender(), &value, sizeof value, abi::kPointerHost, &mhandle),
            Result::kSuccess);
  EXPECT_NE(mhandle, nullptr);
  EXPECT_EQ(net.deregister_memory(line.sender(), mhandle), Result::kSuccess);
  for (const int type : {abi::kPointerCuda, abi::kPointerDmaBuf, 0}) {
    EXPECT_NE(net.register_memory(line.receiver(), &value, sizeof value, type, &mhandle), Result::kSuccess);
    EXPECT_EQ(mhandle, nullptr);
  }
  take_log();
  EXPECT_NE(net.register_dma_buf(line.receiver(), &value, sizeof value, abi::kPointerCuda, 0, 0, &mhandle),
            Result::kSuccess);
  EXPECT_THAT(take_log(), ::testing::HasSubstr("dma-buf"));
}

TEST_P(Connections, RegisteredMemoryCarriesMessagesOfItsParts) {
  const Connection line(a, b);
  ASSERT_TRUE(line.made());
  const auto sent = pattern(3 << 20, 1);
  std::vector<std::byte> received(sent.size());
  void *of_sent = nullptr, *of_received = nullptr;
  ASSERT_EQ(net.register_memory(line.sender(), const_cast<std::byte*>(sent.data()), sent.size(),
                                abi::kPointerHost, &of_sent),
            Result::kSuccess);
  ASSERT_EQ(
      net.register_memory(line.receiver(), received.data(), received.size(), abi::kPointerHost, &of_received),
      Result::kSuccess);
  const std::size_t half = sent.size() / 2 + 1;
  for (const auto& [at, bytes] : {std::pair{std::size_t{0}, half}, std::pair{half, sent.size() - half}}) {
    void* data = received.data() + at;
    int tag = 0;
    void *receive = nullptr, *send = nullptr;
    ASSERT_EQ(net.irecv(line.receiver(), {&data, 1}, {&bytes, 1}, {&tag, 1}, {&of_received, 1}, &receive),
              Result::kSuccess);
    ASSERT_EQ(net.isend(line.sender(), const_cast<std::byte*>(sent.data()) + at, bytes, tag, of_sent, &send),
              Result::kSuccess);
    Pending sending(net, send);
    Pending receiving(net, receive);
    ASSERT_TRUE(complete({&sending, &receiving}));
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(net.deregister_memory(line.sender(), of_sent), Result::kSuccess);
  EXPECT_EQ(net.deregister_memory(line.receiver(), of_received), Result::kSuccess);
}

TEST_P(Connections, ClosingTwiceAndAfterFinalizeIsHarmless) {
  Handle handle{};
  void *listening = nullptr, *send = nullptr, *receive = nullptr;
  {
    const Communicator c(net);
    ASSERT_EQ(net.listen(c.ctx(), 0, handle.data(), &listening), Result::kSuccess);
    ASSERT_TRUE(make_comms(a, 0, handle.data(), listening, send, receive));
    if (c.ctx() != nullptr) {
      EXPECT_EQ(net.finalize(c.ctx()), Result::kSuccess);
    }
  }
  EXPECT_EQ(net.finalize(nullptr), Result::kSuccess);
  expect_service(send, receive);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(net.close_listen(listening), Result::kSuccess);
    EXPECT_EQ(net.close_send(send), Result::kSuccess);
    EXPECT_EQ(net.close_receive(receive), Result::kSuccess);
  }
}

struct TrafficClass : Connections {
  static constexpr int kClass = 0x48;
  Communicator marked{net, kClass};
  /// How many TCP sockets of this process, listeners left out, have this traffic class.
  static int sockets_of(int traffic_class) {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      int value = -1;
      sockaddr_storage peer{};
      socklen_t length = sizeof value, peer_length = sizeof peer;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
          ::getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &length) == 0 && value == traffic_class) {
        ++count;
      }
    }
    return count;
  }
};
ONEBIT_VERSIONS(TrafficClass, 10, 12);  // before, NCCL does not say it

TEST_P(TrafficClass, OfACommunicatorIsThatOfItsConnections) {
  {
    const Connection other(a, b);
    ASSERT_EQ(sockets_of(kClass), 0);
  }
  const Connection line(marked, marked);
  ASSERT_TRUE(line.made());
  expect_service(line.sender(), line.receiver());
  // With v10 the listening end does not know it.
  const int ends = net.version() == 10 ? 1 : 2;
  EXPECT_GE(sockets_of(kClass), ends);
  EXPECT_EQ(sockets_of(kClass) % ends, 0);
}

TEST_P(TrafficClass, ThatIsNoneOfIpIsAnErrorThatNamesIt) {
  void *ctx = nullptr, *send = nullptr;
  Handle handle{};
  void* const listening = listen(handle);
  for (const int wrong : {-2, 256}) {
    const Result result = net.version() == 10 ? net.connect(nullptr, 0, handle.data(), &send, wrong)
                                              : net.init(&ctx, &nccl_logger, wrong);
    EXPECT_EQ(result, Result::kInvalidArgument);
    EXPECT_THAT(take_log(), ::testing::HasSubstr("trafficClass is " + std::to_string(wrong)));
    EXPECT_EQ(net.finalize(ctx), Result::kSuccess) << "as NCCL 2.28 does after an init that failed";
  }
  net.close_listen(listening);
}

TEST_P(Connections, TheVersionInUseAndTheDevicesAreLoggedOnceAtInfo) {
  const Communicator another(net);
  EXPECT_EQ(net.set_attributes(a.ctx()), Result::kSuccess);
  // Once in a process: it is there since the first init of this version, which may have been in another test.
  const std::string log = whole_log();
  EXPECT_THAT(log, ::testing::HasSubstr("INFO NET/onebit: onebit "));
  const std::string version = "net plugin API v" + std::to_string(net.version()) + ",";
  EXPECT_THAT(log, ::testing::HasSubstr(version));
  EXPECT_EQ(log.find(version), log.rfind(version));
  EXPECT_THAT(log, ::testing::HasSubstr("lo (127.0.0.1, "));
}

}  // namespace
}  // namespace onebit::nccl_net::test
