// The list of sockets, and what happens to it at a fork.
#include "base/unique_socket.h"

#include <pthread.h>

#include <vector>

namespace onebit {
namespace {

struct List {
  std::mutex mutex;
  std::vector<bool> open;  ///< by descriptor; never shrinks
};

/// Never destroyed: sockets of static objects may outlive any static object here.
List& list() {
  static List& made = *new List;
  return made;
}

}  // namespace

std::atomic<std::uint32_t> UniqueSocket::current_generation_{0};

/// The handlers may do only what is safe between fork and exec in a process that had threads.
struct ForkHandlers {
  static void before() { list().mutex.lock(); }
  static void in_parent() { list().mutex.unlock(); }
  static void in_child() {
    List& all = list();
    for (std::size_t fd = 0; fd < all.open.size(); ++fd) {
      if (!all.open[fd]) continue;
      ::close(static_cast<int>(fd));
      all.open[fd] = false;
    }
    UniqueSocket::current_generation_.fetch_add(1, std::memory_order_relaxed);
    all.mutex.unlock();
  }
  ForkHandlers() { pthread_atfork(before, in_parent, in_child); }
};

std::unique_lock<std::mutex> UniqueSocket::lock_list() {
  static const ForkHandlers installed;
  return std::unique_lock(list().mutex);
}

UniqueSocket::UniqueSocket(int fd) {
  UniqueFd owned(fd);
  if (!owned) return;
  const auto lock = lock_list();
  enlist(std::move(owned));
}

void UniqueSocket::enlist(UniqueFd fd) {
  std::vector<bool>& open = list().open;
  const auto place = static_cast<std::size_t>(fd.get());
  if (place >= open.size()) open.resize(place + 1);
  open[place] = true;
  fd_ = std::move(fd);
  generation_ = current_generation_.load(std::memory_order_relaxed);
}

void UniqueSocket::reset() noexcept {
  if (!fd_) return;
  if (inherited()) {
    static_cast<void>(fd_.release());
    return;
  }
  const auto lock = lock_list();
  list().open[static_cast<std::size_t>(fd_.get())] = false;
  fd_.reset();
}

}  // namespace onebit
