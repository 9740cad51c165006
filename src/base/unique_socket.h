// A socket that is closed by its owner's destructor, and at once in every child that the process forks.
//
// A peer sees that a process has died when its last copy of the connection is gone. A copy in a forked child
// (a data loader's worker, say) would hide the death for as long as the child lives. So all sockets are
// listed, and closed in the child at once. There, an inherited UniqueSocket is
// empty: the number may be another descriptor's by now. Children made without the handlers of fork (clone,
// vfork) keep their copies until exec. Threads: one at a time per object; fork() in any thread at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/fork.h"
#include "base/unique_fd.h"

namespace onebit {

class UniqueSocket {
 public:
  UniqueSocket() noexcept = default;
  /// Takes over a socket. One that is made by `make` is listed before any child can get a copy.
  explicit UniqueSocket(int fd);
  /// What `open()` (socket, accept4: anything that does not block) returns, with its errno where that is -1.
  template <typename Open>
  static UniqueSocket make(Open open);

  UniqueSocket(UniqueSocket&& other) noexcept = default;
  UniqueSocket& operator=(UniqueSocket&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
      generation_ = other.generation_;
    }
    return *this;
  }
  ~UniqueSocket() { reset(); }

  /// -1 when empty, as in a forked child.
  int get() const noexcept { return inherited() ? -1 : fd_.get(); }
  explicit operator bool() const noexcept { return get() >= 0; }
  void reset() noexcept;

  /// Different in a forked child: what was made under another number belongs to an ancestor.
  static std::uint32_t process_generation() noexcept {
    return current_generation_.load(std::memory_order_relaxed);
  }

 private:
  /// Locks out fork() and changes of the list.
  static std::unique_lock<ForkMutex> lock_list();
  void enlist(UniqueFd fd);
  bool inherited() const noexcept {
    return generation_ != current_generation_.load(std::memory_order_relaxed);
  }

  /// The number of forks between this process and the one that loaded the library.
  static std::atomic<std::uint32_t> current_generation_;
  static void close_in_child();
  static const bool made_at_load_;

  UniqueFd fd_;
  std::uint32_t generation_ = 0;
};

template <typename Open>
UniqueSocket UniqueSocket::make(Open open) {
  UniqueSocket made;
  const auto lock = lock_list();
  if (const int fd = open(); fd >= 0) made.enlist(UniqueFd(fd));
  return made;
}

}  // namespace onebit
