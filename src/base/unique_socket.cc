// The list of sockets, and what happens to it at a fork.
#include "base/unique_socket.h"

#include <vector>

namespace onebit {
namespace {

struct List {
  ForkMutex mutex{LockLevel::kSockets};
  std::vector<bool> open;  ///< by descriptor; never shrinks
};

/// Never destroyed: sockets of static objects may outlive any static object here.
List& list() {
  static List& made = *new List;
  return made;
}

}  // namespace

std::atomic<std::uint32_t> UniqueSocket::current_generation_{0};

void UniqueSocket::close_in_child() {
  List& all = list();
  for (std::size_t fd = 0; fd < all.open.size(); ++fd) {
    if (!all.open[fd]) continue;
    ::close(static_cast<int>(fd));
    all.open[fd] = false;
  }
  current_generation_.fetch_add(1, std::memory_order_relaxed);
}

std::unique_lock<ForkMutex> UniqueSocket::lock_list() {
  static const bool installed = [] {
    list();
    in_forked_children(close_in_child);
    return true;
  }();
  static_cast<void>(installed);
  return std::unique_lock(list().mutex);
}

/// The list, its lock and what is done in children are there when the library is loaded, see ForkMutex.
const bool UniqueSocket::made_at_load_ = lock_list().owns_lock();

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
