// Comms that NCCL has closed and whose last bytes are still on their way.
//
// NCCL's close must not wait for the peer, and a connection that is cut while the peer still reads would be a
// failure to it. So closed comms come here and are looked after whenever NCCL sets up, closes or finalizes
// something, and for a moment when the process ends. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl_net/comm.h"

namespace onebit::nccl_net {

class Closing {
 public:
  /// Also looks after a few of those that came before, so that a thousand closes do not look a thousand times
  /// after a thousand.
  void add(std::unique_ptr<Comm> comm);
  /// Looks after the `most` that have waited longest; destroys those that have come to their end.
  void sweep(std::size_t most = SIZE_MAX);
  /// sweep() until none is left, but no longer than `limit`; then the rest is cut.
  void drain(std::chrono::milliseconds limit);
  /// For fork(): the mutex, so that the child does not find it locked by a thread that it does not have.
  std::mutex& mutex() noexcept { return mutex_; }

 private:
  bool empty();
  std::mutex mutex_;
  std::vector<std::unique_ptr<Comm>> comms_;
};

}  // namespace onebit::nccl_net
