// What the context of TCP, its listeners and its endpoints share beside what those of all transports do.
//
// Threads: one at a time, except Poller::wake. In a forked child the sockets are gone (base/unique_socket.h):
// everything may be destroyed, and nothing else; the parent's connections go on.
#pragma once

#include <chrono>
#include <vector>

#include "base/settings.h"
#include "base/unique_socket.h"
#include "transport/common_endpoint.h"

namespace onebit::transport {

class Flow;
class TcpListener;

struct TcpCore final : CommonCore {
  explicit TcpCore(const Settings& s);

  /// Takes a socket out of the epoll set, ends the connection and closes it.
  void discard(UniqueSocket& fd) noexcept;

  bool polled = false;  ///< the caller of progress() looks at one endpoint, and comes again at once
  std::vector<TcpListener*> listeners;
  Flow* recent = nullptr;  ///< what brought the last message, and most likely brings the next
  const std::chrono::milliseconds link_tick;  ///< how often links with unacknowledged bytes are looked at
};

}  // namespace onebit::transport
