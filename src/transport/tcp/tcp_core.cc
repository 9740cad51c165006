#include "transport/tcp/tcp_core.h"

#include <sys/socket.h>

#include <algorithm>

namespace onebit::transport {

TcpCore::TcpCore(const Settings& s)
    : CommonCore(s),
      link_tick(std::clamp<std::chrono::milliseconds>(s.link_timeout / 4, std::chrono::milliseconds(10),
                                                      std::chrono::milliseconds(1000))) {}

void TcpCore::discard(UniqueSocket& fd) noexcept {
  if (!fd) return;
  // The set and the connection live as long as any process has a copy of the descriptor, such as a child that
  // was made behind fork's handlers: both are ended by name.
  poller.remove(fd.get());
  ::shutdown(fd.get(), SHUT_RDWR);
  fd.reset();
}

}  // namespace onebit::transport
