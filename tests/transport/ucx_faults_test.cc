// What is UCX's own in connections: its ways to the peer, its workers, what it does in a forked process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr const char* kTcp = "tcp,self";
constexpr const char* kSharedMemory = "shm,self";

class UcxFaults : public ::testing::TestWithParam<const char*> {
 protected:
  static Variant variant() { return ucx_variant("", GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Networks, UcxFaults, ::testing::Values(kTcp, kSharedMemory),
                         [](const auto& networks) {
                           return std::string(networks.param == kTcp ? "tcp" : "shared_memory");
                         });

/// All by UCX's eager protocol, then all by rendezvous: what the job says is respected.
TEST_P(UcxFaults, CarriesMessagesWhateverThresholdTheJobSets) {
  for (const char* const threshold : {"inf", "0"}) {
    SCOPED_TRACE(threshold);
    ::setenv("UCX_RNDV_THRESH", threshold, 1);
    Pair pair(variant());
    ::unsetenv("UCX_RNDV_THRESH");
    ASSERT_TRUE(pair.connected());
    for (const std::size_t bytes : {0UL, 1UL, 8UL, 5000UL, 3UL << 20}) expect_exchange(pair, bytes);
  }
}

TEST_P(UcxFaults, ConnectionsThatComeAndGoUseTheSameWorkersAgain) {
  const auto context_a = make(variant());
  const auto context_b = make(variant());
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    auto a = context_a->connect(0, (*listener)->handle(), {});
    ASSERT_TRUE(a.ok()) << a.status().message();
    std::unique_ptr<Endpoint> b;
    ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
      auto accepted = (*listener)->accept();
      EXPECT_TRUE(accepted.ok()) << accepted.status().message();
      if (accepted.ok() && *accepted) b = std::move(*accepted);
      return b && (*a)->state() != State::kConnecting;
    })) << (*a)->status().message();
    const std::uint64_t value = 5;
    std::uint64_t got = 0;
    Request send;
    Request receive;
    ASSERT_TRUE((*a)->send(send, &value, sizeof value, 1, 0).ok()) << (*a)->status().message();
    ASSERT_TRUE(b->receive(receive, &got, sizeof got, 1, 0).ok());
    ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] { return has_ended(receive); }));
    ASSERT_TRUE(is_done(receive)) << b->status().message();
    if (round % 3 == 0) (*a)->abort(Status(Code::kAborted, "enough"));
    if (round % 3 == 1) b.reset();
  }
}

TEST_P(UcxFaults, AChildOfAProcessThatUsesUcxIsToldThatItCannot) {
  const auto context = make(variant());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = variant().make(variant().settings);
    ::_exit(!made.ok() && made.status().code() == Code::kInvalidUsage ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_P(UcxFaults, SleepsUntilAMessageOrAWakeComes) {
  Pair pair(variant());
  ASSERT_TRUE(pair.connected());
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    pair.context_b->wake();
  });
  EXPECT_TRUE(progress(*pair.context_b, seconds(20)).ok());
  other.join();
  Request send;
  Request receive;
  std::uint64_t value = 1;
  std::uint64_t got = 0;
  ASSERT_TRUE(pair.b->receive(receive, &got, sizeof got, 1, 0).ok());
  std::thread sender([&] {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(pair.a->send(send, &value, sizeof value, 1, 0).ok());
    for (int turn = 0; turn < 100 && !has_ended(send); ++turn) {
      EXPECT_TRUE(progress(*pair.context_a, milliseconds(10)).ok());
    }
  });
  for (int turn = 0; turn < 100 && !has_ended(receive); ++turn) {
    EXPECT_TRUE(progress(*pair.context_b, seconds(20)).ok());
  }
  sender.join();
  EXPECT_TRUE(is_done(receive));
  EXPECT_EQ(got, 1U);
}

TEST(UcxNetworks, NoneThatReachesThePeerIsAnErrorThatSaysWhatWasChosen) {
  const Variant variant = ucx_variant("", "self");  // a worker reaches only itself
  const auto context_a = make(variant);
  const auto context_b = make(variant);
  auto listener = context_b->listen(0);
  ASSERT_TRUE(listener.ok());
  auto connecting = context_a->connect(0, (*listener)->handle(), {});
  ASSERT_TRUE(connecting.ok());
  std::unique_ptr<Endpoint> accepted;
  ::testing::internal::CaptureStdout();
  ASSERT_TRUE(drive({context_a.get(), context_b.get()}, [&] {
    auto made = (*listener)->accept();
    if (made.ok() && *made) accepted = std::move(*made);
    return (*connecting)->state() == State::kFailed;
  }));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "") << "UCX's messages go to the log";
  EXPECT_THAT((*connecting)->status().message(),
              AllOf(HasSubstr((*connecting)->peer()), HasSubstr("UCX_TLS=self")));
}

}  // namespace
}  // namespace onebit::transport::test
