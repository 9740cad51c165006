// The rules of set-up: listen, connect and accept never wait, may be given up at any time, and may be
// repeated.
#include <gmock/gmock.h>

#include <cstring>

#include "net_pair.h"

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
  ASSERT_TRUE(until([&] {
    if (send == nullptr) {
      EXPECT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
    }
    if (receive == nullptr) {
      EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
    }
    return send != nullptr && receive != nullptr;
  }));
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
  ASSERT_TRUE(until([&] {
    if (send == nullptr) {
      EXPECT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
    }
    if (receive == nullptr) {
      EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
    }
    return send != nullptr && receive != nullptr;
  }));
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
    ASSERT_TRUE(until([&] {
      if (send == nullptr) {
        EXPECT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
      }
      if (receive == nullptr) {
        EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
      }
      return send != nullptr && receive != nullptr;
    }));
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
  ASSERT_TRUE(until([&] {
    if (send == nullptr) {
      EXPECT_EQ(net.connect(a.ctx(), 0, theirs.data(), &send), Result::kSuccess);
    }
    if (receive == nullptr) {
      EXPECT_EQ(net.accept(other, &receive), Result::kSuccess);
    }
    return send != nullptr && receive != nullptr;
  }));
  expect_service(send, receive);
  net.close_send(send);
  net.close_receive(receive);
  net.close_listen(listening);
  net.close_listen(other);
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
  EXPECT_NE(net.register_memory(line.receiver(), &value, sizeof value, 2, &mhandle), Result::kSuccess);
}

TEST_P(Connections, ClosingTwiceAndAfterFinalizeIsHarmless) {
  Handle handle{};
  void *listening = nullptr, *send = nullptr, *receive = nullptr;
  {
    const Communicator c(net);
    ASSERT_EQ(net.listen(c.ctx(), 0, handle.data(), &listening), Result::kSuccess);
    ASSERT_TRUE(until([&] {
      if (send == nullptr) {
        EXPECT_EQ(net.connect(a.ctx(), 0, handle.data(), &send), Result::kSuccess);
      }
      if (receive == nullptr) {
        EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess);
      }
      return send != nullptr && receive != nullptr;
    }));
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

TEST_P(Connections, TheVersionInUseAndTheDevicesAreLoggedAtInfo) {
  EXPECT_EQ(net.set_attributes(a.ctx()), Result::kSuccess);
  // Once in a process: it is there since the first init of this version, which may have been in another test.
  const std::string log = whole_log();
  EXPECT_THAT(log, ::testing::HasSubstr("INFO NET/onebit: onebit "));
  EXPECT_THAT(log, ::testing::HasSubstr("net plugin API v" + std::to_string(net.version()) + ","));
  EXPECT_THAT(log, ::testing::HasSubstr("lo (127.0.0.1, "));
}

}  // namespace
}  // namespace onebit::nccl_net::test
