// Rank 0's listening sockets for a master given by name and port.
#include "bootstrap/listening.h"

#include <arpa/inet.h>

#include <algorithm>

#include "bootstrap/interfaces.h"
#include "bootstrap/joining.h"
#include "bootstrap/stream.h"

namespace onebit::bootstrap {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPortPatience{3'000};
constexpr milliseconds kPause{100};

bool names_one_address(const std::string& host) {
  in6_addr ignored{};
  return host == "localhost" || ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

SocketAddress any_address(sa_family_t family, std::uint16_t port) {
  sockaddr_in6 storage{};  // all zeros is "any" in both families
  storage.sin6_family = family;
  SocketAddress address(reinterpret_cast<const sockaddr*>(&storage), sizeof storage);
  address.set_port(port);
  return address;
}

}  // namespace

Result<std::vector<SocketAddress>> listen_addresses(const Launch& launch, const Settings& settings) {
  auto resolved = resolve(launch.master_host, launch.master_port, settings.socket_family);
  if (!resolved.ok()) return resolved.status().with_context("the master's address");
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
  const auto is_here = [&](SocketAddress address) {
    address.set_port(0);
    return address.is_loopback() || std::any_of(all.begin(), all.end(), [&](const Interface& interface) {
             return interface.address == address;
           });
  };
  std::vector<SocketAddress> addresses;
  for (const SocketAddress& address : *resolved) {
    const bool exactly = names_one_address(launch.master_host) && is_here(address);
    const SocketAddress wanted = exactly ? address : any_address(address.family(), launch.master_port);
    if (std::find(addresses.begin(), addresses.end(), wanted) == addresses.end()) addresses.push_back(wanted);
  }
  return addresses;
}

Result<std::vector<UniqueSocket>> open_listeners(const Launch& launch, const Settings& settings,
                                                 const Key& key, const Member& self, Deadline deadline) {
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, listen_addresses(launch, settings));
  const Deadline until = deadline.earlier(Deadline::after(kPortPatience));
  for (;;) {
    std::vector<UniqueSocket> listeners;
    Status last;
    for (const SocketAddress& address : addresses) {
      auto listener = listen_on(address, PortRange{});
      if (listener.ok()) {
        listeners.push_back(std::move(*listener));
      } else {
        last = listener.status();
      }
    }
    // One family may be switched off on this machine; what matters is that one works.
    if (!listeners.empty()) return listeners;
    if (until.passed()) {
      return last.with_context(
          "rank 0 cannot listen (does another service, such as PyTorch's own store, have the "
          "port? ONEBIT_MASTER_PORT sets another)");
    }
    // Whoever has the port: if it is this job's rank 0, it refuses us and fails itself.
    ONEBIT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> masters,
                            resolve(launch.master_host, launch.master_port, settings.socket_family));
    for (const SocketAddress& master : masters) {
      bool final = false;
      const auto joined = try_join(master, SocketAddress(), key, self, milliseconds(1'000), until, final);
      if (final) return joined.status();
    }
    std::vector<pollfd> nothing;
    ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(nothing, until.earlier(Deadline::after(kPause))));
    static_cast<void>(ready);
  }
}

}  // namespace onebit::bootstrap
