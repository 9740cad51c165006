// Sockets and fork: a child has no copy, and what it does with an inherited UniqueSocket harms nobody.
#include "base/unique_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "support/sanitizers.h"

namespace onebit {
namespace {

struct Ends {
  Ends() {
    std::array<int, 2> fds{-1, -1};
    near = UniqueSocket::make([&] {
      EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()));
      return fds[0];
    });
    far = UniqueSocket(fds[1]);
  }
  UniqueSocket near, far;
};

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

bool at_end(const UniqueSocket& socket) {
  pollfd entry{socket.get(), POLLIN, 0};
  char byte;
  return ::poll(&entry, 1, 5'000) == 1 && ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

/// A child that runs `body` and then lives until its object is destroyed.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    std::array<int, 2> fds{-1, -1};
    EXPECT_EQ(0, ::pipe(fds.data()));
    pid_ = ::fork();
    if (pid_ == 0) {
      const int result = body();
      static_cast<void>(!::write(fds[1], &result, sizeof result));
      ::alarm(60);
      for (;;) ::pause();
    }
    if (::read(fds[0], &result_, sizeof result_) != sizeof result_) result_ = -1;
    ::close(fds[0]);
    ::close(fds[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int result() const { return result_; }

 private:
  pid_t pid_ = -1;
  int result_ = -1;
};

TEST(UniqueSocket, IsClosedByItsOwnerAndMovesLikeADescriptor) {
  Ends ends;
  const int number = ends.near.get();
  UniqueSocket moved = std::move(ends.near);
  EXPECT_FALSE(ends.near);
  EXPECT_EQ(number, moved.get());
  ends.near = std::move(moved);
  EXPECT_TRUE(is_open(number));
  ends.near.reset();
  EXPECT_FALSE(is_open(number));
  EXPECT_TRUE(at_end(ends.far));
}

TEST(UniqueSocket, MakeKeepsTheErrnoOfAFailure) {
  const UniqueSocket none = UniqueSocket::make([] { return ::socket(AF_UNIX, -1, 0); });
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(none);
}

TEST(UniqueSocket, AChildThatLivesOnDoesNotHideTheEndOfItsParent) {
  Ends ends;
  const int number = ends.near.get();
  const Child child([&] {
    const bool gone = !ends.near && ends.near.get() == -1 && !is_open(number);
    return gone ? 0 : 1;
  });
  EXPECT_EQ(0, child.result());
  EXPECT_TRUE(is_open(number)) << "the parent's own is closed";
  ends.near.reset();
  EXPECT_TRUE(at_end(ends.far));
}

TEST(UniqueSocket, InAChildAnInheritedOneLeavesANewOwnerOfItsNumberAlone) {
  std::optional<Ends> ends(std::in_place);
  const int number = ends->near.get();
  const Child child([&] {
    const UniqueSocket own = UniqueSocket::make([] { return ::socket(AF_UNIX, SOCK_STREAM, 0); });
    if (own.get() > number) return 1;  // the lowest free number, so one of those that were closed
    ends.reset();
    UniqueSocket sink = std::move(ends.emplace().near);
    sink = UniqueSocket();
    if (!is_open(own.get())) return 2;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(own || is_open(number) ? 1 : 0);
    int status = -1;
    ::waitpid(grandchild, &status, 0);
    return status == 0 ? 0 : 3;
  });
  EXPECT_EQ(0, child.result());
}

TEST(UniqueSocket, NoChildGetsACopyWhileAnotherThreadMakesSockets) {
  if (testing::sanitized()) GTEST_SKIP() << "threads and forked children are not for the sanitizers";
  std::atomic<bool> stop{false};
  std::thread maker([&] {
    while (!stop) {
      std::vector<UniqueSocket> several;
      for (int i = 0; i < 20; ++i) {
        several.push_back(UniqueSocket::make([] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }));
      }
    }
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      int sockets = 0;
      for (int fd = 3; fd < 64; ++fd) {
        int type = 0;
        socklen_t length = sizeof type;
        if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) ++sockets;
      }
      ::_exit(sockets);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(0, status);
    if (status != 0) break;
  }
  stop = true;
  maker.join();
}

}  // namespace
}  // namespace onebit
