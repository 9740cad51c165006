#include "base/fork.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <vector>

namespace onebit {
namespace {

/// The locks and actions. Never destroyed: other threads may still fork when static objects are torn down.
struct Handlers {
  std::mutex mutex;                              // for the lists; taken first at a fork
  std::array<std::vector<ForkMutex*>, 3> locks;  // by level
  std::vector<void (*)()> actions;

  static Handlers& instance() {
    static Handlers* const made = [] {
      pthread_atfork(before, in_parent, in_child);
      return new Handlers;
    }();
    return *made;
  }

 private:
  static void before() {
    Handlers& all = instance();
    all.mutex.lock();
    for (const auto& level : all.locks) {
      for (ForkMutex* const lock : level) lock->lock();
    }
  }
  static void in_parent() {
    Handlers& all = instance();
    for (auto level = all.locks.rbegin(); level != all.locks.rend(); ++level) {
      for (ForkMutex* const lock : *level) lock->unlock();
    }
    all.mutex.unlock();
  }
  static void in_child() {
    for (void (*const action)() : instance().actions) action();
    in_parent();
  }
};

}  // namespace

ForkMutex::ForkMutex(LockLevel level) {
  Handlers& all = Handlers::instance();
  const std::lock_guard lock(all.mutex);
  all.locks[static_cast<std::size_t>(level)].push_back(this);
}

void in_forked_children(void (*action)()) {
  Handlers& all = Handlers::instance();
  const std::lock_guard lock(all.mutex);
  all.actions.push_back(action);
}

}  // namespace onebit
