// What the context, its listeners and its endpoints share: the epoll set, ended requests, timers.
//
// Held by shared_ptr, so that the order in which a user destroys them does not matter. Threads: one at a
// time, except Poller::wake. In a forked child the sockets are gone (base/unique_socket.h): everything may be
// destroyed, and nothing else; the parent's connections go on.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/settings.h"
#include "base/unique_socket.h"
#include "transport/tcp/tcp_poller.h"
#include "transport/transport.h"

namespace onebit::transport {

class Flow;
class TcpEndpoint;
class TcpListener;
using Clock = std::chrono::steady_clock;

struct TcpCore {
  explicit TcpCore(const Settings& s);

  /// Takes a socket out of the epoll set, ends the connection and closes it.
  void discard(UniqueSocket& fd) noexcept;
  /// Has the timers looked at within `delay`.
  void ask_tick(std::chrono::milliseconds delay) noexcept {
    if (delay < asked_tick) asked_tick = delay;
  }

  Settings settings;
  Poller poller;
  bool notable = false;  ///< something happened for which progress() returns
  bool polled = false;   ///< the caller of progress() does not wait in it, and comes again at once
  // Room for all endpoints is reserved in each of the three when one is made: adding never fails.
  std::vector<TcpEndpoint*> endpoints;
  std::vector<TcpEndpoint*> failed;     ///< in the order of failing
  std::vector<TcpEndpoint*> reporting;  ///< those with ended requests to report
  std::vector<TcpListener*> listeners;
  Flow* recent = nullptr;  ///< what brought the last message, and most likely brings the next
  std::chrono::milliseconds asked_tick = kNoTick;
  const std::chrono::milliseconds link_tick;  ///< how often links with unacknowledged bytes are looked at

  static constexpr std::chrono::milliseconds kNoTick = std::chrono::milliseconds::max();
};

}  // namespace onebit::transport
