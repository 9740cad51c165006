// Verbs and processes: a killed peer, a child that inherits connections, a limit of locked memory. In the VM
// (vm).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "transport/factory.h"
#include "transport_pair.h"
#include "verbs_support.h"

namespace onebit::transport::test {
namespace {

using std::chrono::milliseconds;
using State = Endpoint::State;
using testing::HasSubstr;

/// Runs `body` in a child; what it returns comes back as text.
std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  std::size_t have = 0;
  for (ssize_t got = 1; got > 0 && have<text.size(); have += got> 0 ? static_cast<std::size_t>(got) : 0) {
    got = ::read(ends[0], text.data() + have, text.size() - have);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  text.resize(have);
  return text;
}

TEST(VerbsProcesses, ALimitOfLockedMemoryIsAnErrorThatSaysWhatToRaise) {
  const std::string said = in_child([] {
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setresuid(65534, 65534, 65534) != 0)
      return std::string("no limit");
    const auto context = make_context("verbs", on("=rxe0"), SocketAddress());
    if (!context.ok()) return context.status().message();
    auto listener = (*context)->listen(0);
    if (!listener.ok()) return listener.status().message();
    return (*context)->connect(0, (*listener)->handle(), {}).status().message();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("RLIMIT_MEMLOCK of this process is 65536 bytes"),
                          HasSubstr("ulimit -l unlimited"), HasSubstr("LimitMEMLOCK=infinity"),
                          HasSubstr("--ulimit memlock=-1")));
}

TEST(VerbsProcesses, AChildThatDestroysWhatItInheritedLeavesTheConnectionAlone) {
  Pair pair(verbs_variant(""));
  ASSERT_TRUE(pair.connected());
  expect_exchange(pair);
  EXPECT_EQ(in_child([&] {
              pair.a.reset();
              pair.b.reset();
              pair.listener.reset();
              pair.context_a.reset();
              pair.context_b.reset();
              return std::string("gone");
            }),
            "gone");
  expect_exchange(pair);
}

TEST(VerbsProcesses, AKilledPeerEndsAllRequestsAndIsNamed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto context = make_context("verbs", on("=rxe1"), SocketAddress());
    auto listener = (*context)->listen(0);
    const Handle handle = (*listener)->handle();
    if (::write(ends[1], handle.bytes.data(), handle.bytes.size()) < 0) ::_exit(1);
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> memory(64UL << 20);
    Request receive;
    for (;;) {
      if (endpoint == nullptr) {
        auto accepted = (*listener)->accept();
        if (accepted.ok() && *accepted) {
          endpoint = std::move(*accepted);
          static_cast<void>(endpoint->receive(receive, memory.data(), memory.size(), 1, 0));
        }
      }
      static_cast<void>(progress(**context, milliseconds(10)));
    }
  }
  Handle handle;
  ASSERT_EQ(::read(ends[0], handle.bytes.data(), handle.bytes.size()), static_cast<ssize_t>(sizeof handle));
  auto context = make_context("verbs", on("=rxe0"), SocketAddress());
  ASSERT_TRUE(context.ok());
  auto endpoint = (*context)->connect(0, handle, {});
  ASSERT_TRUE(endpoint.ok());
  ASSERT_TRUE(drive({context->get()}, [&] { return (*endpoint)->state() == State::kReady; }));
  const auto sent = pattern(64UL << 20, 1);
  std::array<Request, 3> requests;
  std::array<std::byte, 8> bytes{};
  ASSERT_TRUE((*endpoint)->send(requests[0], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->send(requests[1], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE((*endpoint)->receive(requests[2], bytes.data(), bytes.size(), 1, 0).ok());
  ASSERT_TRUE(drive({context->get()}, [&] { return (*endpoint)->counters().payload_sent > 2'000'000; }));
  ::kill(child, SIGKILL);
  ASSERT_TRUE(
      drive({context->get()}, [&] { return std::all_of(requests.begin(), requests.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_failed));
  EXPECT_EQ((*endpoint)->status().code(), Code::kRemoteError);
  EXPECT_THAT((*endpoint)->status().message(), HasSubstr((*endpoint)->peer()));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace onebit::transport::test
