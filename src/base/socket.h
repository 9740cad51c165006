// Addresses and the few socket calls that set-up and TCP share. All sockets are non-blocking and O_CLOEXEC.
//
// Functions report errors with the address in the message. No state; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/unique_socket.h"

namespace onebit {

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() noexcept = default;
  SocketAddress(const sockaddr* address, socklen_t length) noexcept;

  sa_family_t family() const noexcept { return storage_.ss_family; }
  bool valid() const noexcept { return family() == AF_INET || family() == AF_INET6; }
  std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  bool is_loopback() const noexcept;
  bool is_link_local() const noexcept;
  bool is_any() const noexcept;
  /// Compares address and port (and scope for IPv6).
  bool operator==(const SocketAddress& other) const noexcept;
  /// "10.0.0.1:29500" or "[fd00::1]:29500".
  std::string to_string() const;
  /// "10.0.0.1" or "fd00::1".
  std::string host() const;

  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const noexcept { return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }

 private:
  sockaddr_storage storage_{};
};

/// The addresses of a host name or a literal (getaddrinfo), of the asked family, never empty when ok.
Result<std::vector<SocketAddress>> resolve(std::string_view host, std::uint16_t port, SocketFamily family);

/// A listening socket on `address`; with port 0, on a free port of `range` (tried in a random order). An IPv6
/// socket takes IPv6 only.
Result<UniqueSocket> listen_on(SocketAddress address, PortRange range, int backlog = 1024);
/// Starts to connect from `source` (invalid: any; its port is ignored) to `destination`; completion shows as
/// writability, its outcome by connect_error.
Result<UniqueSocket> start_connect(const SocketAddress& destination, const SocketAddress& source);
/// 0, or the errno with which a started connect has failed.
int connect_error(int fd) noexcept;
/// The next connection of a listening socket; an empty fd when there is none. Errors only for faults of the
/// listener itself or when the process is out of file descriptors.
Result<UniqueSocket> accept_from(int listener, SocketAddress* peer);
Result<SocketAddress> local_address(int fd);

/// TCP_NODELAY, buffer sizes (0 = the system's tuning), and keep-alive so that a dead link shows within about
/// `link_timeout` where nothing is in flight. (Not TCP_USER_TIMEOUT: it would also end connections to a rank
/// which is alive but busy, whose window is closed.)
Status tune_tcp(int fd, std::chrono::milliseconds link_timeout, std::uint64_t sndbuf, std::uint64_t rcvbuf,
                std::uint32_t traffic_class = 0);

}  // namespace onebit
