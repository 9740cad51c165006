// UCX where descriptors run out: an error that says what to raise, at whatever step it comes; never the end
// of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using std::chrono::seconds;

constexpr int kConnected = 10;
constexpr int kTold = 11;    // by an error that names the remedy
constexpr int kFailed = 12;  // by another error

int open_descriptors() {
  using std::filesystem::directory_iterator;
  return static_cast<int>(std::distance(directory_iterator("/proc/self/fd"), directory_iterator()));
}

/// Connects two contexts of this process; what came of it.
int connect(const Variant& variant) {
  const auto outcome = [](const Status& status) {
    return status.message().find("ulimit -n") != std::string::npos ? kTold : kFailed;
  };
  const auto a = variant.make(variant.settings);
  if (!a.ok()) return outcome(a.status());
  const auto b = variant.make(variant.settings);
  if (!b.ok()) return outcome(b.status());
  const auto listener = (*b)->listen(0);
  if (!listener.ok()) return outcome(listener.status());
  const auto endpoint = (*a)->connect(0, (*listener)->handle(), {});
  if (!endpoint.ok()) return outcome(endpoint.status());
  std::unique_ptr<Endpoint> accepted;
  Status failure;
  drive(
      {a->get(), b->get()},
      [&] {
        auto next = (*listener)->accept();
        if (next.ok() && *next != nullptr) accepted = std::move(*next);
        if (!next.ok()) failure = next.status();
        return !failure.ok() || (*endpoint)->state() != Endpoint::State::kConnecting;
      },
      seconds(5));
  if ((*endpoint)->state() == Endpoint::State::kReady) return kConnected;
  return outcome(failure.ok() ? (*endpoint)->status() : failure);
}

/// The same with so many descriptors more than are open, in a process of its own. Its exit status.
int connect_with(int more, const Variant& variant) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto few = static_cast<rlim_t>(open_descriptors() + more);
    const rlimit limit{few, few};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(1);
    ::_exit(connect(variant));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "with " << more << ": signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class UcxLimits : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Networks, UcxLimits, ::testing::Values("tcp,self", "shm,self", "all"));

TEST_P(UcxLimits, TooFewDescriptorsAreAnErrorThatSaysWhatToRaise) {
  const Variant variant = ucx_variant("", GetParam());
  int told = 0;
  for (int more = 2; more < 60; more += 2) {
    const int outcome = connect_with(more, variant);
    EXPECT_THAT(outcome, ::testing::AnyOf(kConnected, kTold, kFailed)) << more;
    told += outcome == kTold ? 1 : 0;
  }
  EXPECT_GT(told, 10);
  EXPECT_EQ(connect_with(200, variant), kConnected);
}

}  // namespace
}  // namespace onebit::transport::test
