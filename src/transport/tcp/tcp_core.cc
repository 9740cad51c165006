#include "transport/tcp/tcp_core.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace onebit::transport {

TcpCore::TcpCore(const Settings& s)
    : settings(s),
      link_tick(std::clamp<std::chrono::milliseconds>(s.link_timeout / 4, std::chrono::milliseconds(10),
                                                      std::chrono::milliseconds(1000))),
      process_(getpid()) {}

bool TcpCore::in_forked_child() const noexcept {
  return getpid() != process_;
}

void TcpCore::discard(UniqueFd& fd) noexcept {
  if (!fd) return;
  if (!in_forked_child()) {
    // The set and the connection live as long as any process has a copy of the descriptor: both are ended
    // by name.
    poller.remove(fd.get());
    ::shutdown(fd.get(), SHUT_RDWR);
  }
  fd.reset();
}

}  // namespace onebit::transport
