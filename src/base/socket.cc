#include "base/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>

namespace onebit {
namespace {

Status set_option(int fd, int level, int option, int value, std::string_view name) {
  if (setsockopt(fd, level, option, &value, sizeof value) == 0) return Status();
  return Status::system(errno, formatted("setsockopt {}={}", name, value));
}

Result<UniqueSocket> new_socket(sa_family_t family) {
  UniqueSocket fd =
      UniqueSocket::make([&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd) return Status::system(errno, "socket");
  return fd;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) noexcept {
  std::memcpy(&storage_, address, std::min<std::size_t>(length, sizeof storage_));
}

std::uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
}

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  }
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::is_link_local() const noexcept {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 16 == 0xA9FE;
  }
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::is_any() const noexcept {
  if (family() == AF_INET) return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == 0;
  return family() == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::operator==(const SocketAddress& other) const noexcept {
  if (family() != other.family() || port() != other.port()) return false;
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(&other.storage_)->sin_addr.s_addr;
  }
  const auto& mine = *reinterpret_cast<const sockaddr_in6*>(&storage_);
  const auto& theirs = *reinterpret_cast<const sockaddr_in6*>(&other.storage_);
  return std::memcmp(&mine.sin6_addr, &theirs.sin6_addr, sizeof mine.sin6_addr) == 0 &&
         mine.sin6_scope_id == theirs.sin6_scope_id;
}

std::string SocketAddress::to_string() const {
  if (!valid()) return "(no address)";
  return family() == AF_INET ? formatted("{}:{}", host(), port()) : formatted("[{}]:{}", host(), port());
}

std::string SocketAddress::host() const {
  if (!valid()) return "(no address)";
  const void* const address =
      family() == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family(), address, text.data(), text.size());
  return text.data();
}

Result<std::vector<SocketAddress>> resolve(std::string_view host, std::uint16_t port, SocketFamily family) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = family == SocketFamily::kIPv4   ? AF_INET
                    : family == SocketFamily::kIPv6 ? AF_INET6
                                                    : AF_UNSPEC;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(), nullptr, &hints, &list);
  if (error != 0) return Status::error(Code::kSystemError, "resolve {}: {}", host, gai_strerror(error));
  std::vector<SocketAddress> found;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress address(at->ai_addr, at->ai_addrlen);
    address.set_port(port);
    if (address.valid()) found.push_back(address);
  }
  freeaddrinfo(list);
  if (found.empty()) return Status::error(Code::kSystemError, "resolve {}: no IPv4 or IPv6 address", host);
  return found;
}

Result<UniqueSocket> listen_on(SocketAddress address, PortRange range, int backlog) {
  std::vector<std::uint16_t> ports{address.port()};
  const bool from_range = address.port() == 0 && range.first != 0;
  if (from_range) {
    ports.resize(range.last - range.first + 1U);
    std::iota(ports.begin(), ports.end(), range.first);
    std::shuffle(ports.begin(), ports.end(), std::minstd_rand(std::random_device{}()));
  }
  int last_error = 0;
  for (const std::uint16_t port : ports) {
    address.set_port(port);
    ONEBIT_ASSIGN_OR_RETURN(UniqueSocket fd, new_socket(address.family()));
    // A port given by the user may still have connections of the job before in TIME_WAIT.
    ONEBIT_RETURN_IF_ERROR(set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
    if (address.family() == AF_INET6) {
      ONEBIT_RETURN_IF_ERROR(set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"));
    }
    if (::bind(fd.get(), address.data(), address.size()) == 0 && ::listen(fd.get(), backlog) == 0) return fd;
    last_error = errno;
    if (last_error != EADDRINUSE) break;
  }
  if (from_range) {
    return Status::system(last_error, formatted("listen on {} with a port of ONEBIT_PORT_RANGE={}-{}",
                                                address.host(), range.first, range.last));
  }
  return Status::system(last_error, formatted("listen on {}", address.to_string()));
}

Result<UniqueSocket> start_connect(const SocketAddress& destination, const SocketAddress& source) {
  ONEBIT_ASSIGN_OR_RETURN(UniqueSocket fd, new_socket(destination.family()));
  if (source.valid() && source.family() == destination.family()) {
    SocketAddress from = source;
    from.set_port(0);
    // The port is chosen at connect time, so that many connections to different peers may share one.
    ONEBIT_RETURN_IF_ERROR(
        set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT"));
    if (::bind(fd.get(), from.data(), from.size()) != 0) {
      return Status::system(errno, formatted("bind to source address {}", from.to_string()));
    }
  }
  int result;
  do {
    result = ::connect(fd.get(), destination.data(), destination.size());
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINPROGRESS && errno != EALREADY) {
    return Status::system(errno, formatted("connect to {}", destination.to_string()));
  }
  return fd;
}

int connect_error(int fd) noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

Result<UniqueSocket> accept_from(int listener, SocketAddress* peer) {
  sockaddr_storage storage{};
  for (;;) {
    socklen_t length = sizeof storage;
    UniqueSocket fd = UniqueSocket::make([&] {
      return ::accept4(listener, reinterpret_cast<sockaddr*>(&storage), &length,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (fd) {
      if (peer != nullptr) *peer = SocketAddress(reinterpret_cast<sockaddr*>(&storage), length);
      return fd;
    }
    switch (errno) {
      case EAGAIN:
        return UniqueSocket();
      // The connection itself has already gone wrong (accept(2) lists these): take the next.
      case EINTR:
      case ECONNABORTED:
      case EPERM:
      case EPROTO:
      case ENETDOWN:
      case ENOPROTOOPT:
      case EHOSTDOWN:
      case ENONET:
      case EHOSTUNREACH:
      case ENETUNREACH:
        continue;
      default:
        return Status::system(errno, "accept");
    }
  }
}

Result<SocketAddress> local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return Status::system(errno, "getsockname");
  }
  return SocketAddress(reinterpret_cast<sockaddr*>(&storage), length);
}

Status tune_tcp(int fd, std::chrono::milliseconds link_timeout, std::uint64_t sndbuf, std::uint64_t rcvbuf,
                std::uint32_t traffic_class) {
  // Keep-alive: the first probe after a third of the time, then two more, a third apart.
  constexpr std::chrono::milliseconds::rep kLongest = 32'767;  // the kernel's
  const int step =
      static_cast<int>(std::clamp<std::chrono::milliseconds::rep>(link_timeout.count() / 3000, 1, kLongest));
  ONEBIT_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  ONEBIT_RETURN_IF_ERROR(set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  ONEBIT_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, step, "TCP_KEEPIDLE"));
  ONEBIT_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, step, "TCP_KEEPINTVL"));
  ONEBIT_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2, "TCP_KEEPCNT"));
  if (sndbuf != 0) {
    ONEBIT_RETURN_IF_ERROR(set_option(
        fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(std::min<std::uint64_t>(sndbuf, 1U << 30)), "SO_SNDBUF"));
  }
  if (rcvbuf != 0) {
    ONEBIT_RETURN_IF_ERROR(set_option(
        fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(std::min<std::uint64_t>(rcvbuf, 1U << 30)), "SO_RCVBUF"));
  }
  if (traffic_class != 0) {
    ONEBIT_ASSIGN_OR_RETURN(const SocketAddress local, local_address(fd));
    const auto value = static_cast<int>(traffic_class);
    ONEBIT_RETURN_IF_ERROR(local.family() == AF_INET6
                               ? set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, value, "IPV6_TCLASS")
                               : set_option(fd, IPPROTO_IP, IP_TOS, value, "IP_TOS"));
  }
  return Status();
}

}  // namespace onebit
