// The list of interfaces from the system, and the choice among them. Pure but for getifaddrs; any thread.
#include "bootstrap/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

namespace onebit::bootstrap {
namespace {

/// The bytes of an address in network order.
std::span<const std::uint8_t> raw(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const std::uint8_t*>(&v4->sin_addr), 4};
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return {reinterpret_cast<const std::uint8_t*>(&v6->sin6_addr), 16};
}

struct Pattern {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string_view> names;

  /// The position of the first name that matches.
  std::optional<std::size_t> find(std::string_view name) const {
    const auto at = std::find_if(names.begin(), names.end(), [&](std::string_view wanted) {
      return exact ? name == wanted : name.starts_with(wanted);
    });
    if (at == names.end()) return std::nullopt;
    return static_cast<std::size_t>(at - names.begin());
  }
};

Pattern parse_pattern(std::string_view text) {
  Pattern pattern;
  if (text.starts_with('^')) {
    pattern.exclude = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    pattern.exact = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    if (comma > 0) pattern.names.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return pattern;
}

/// Names of bridges and pairs that containers and virtual machines of this host use among themselves.
bool is_private_to_host(std::string_view name) {
  constexpr std::array<std::string_view, 4> kPrefixes{"docker", "virbr", "veth", "br-"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool of_family(const SocketAddress& address, SocketFamily family) {
  return family == SocketFamily::kAny ||
         address.family() == (family == SocketFamily::kIPv4 ? AF_INET : AF_INET6);
}

std::string list_of(const std::vector<Interface>& all) {
  std::string text;
  for (const Interface& interface : all) {
    text += formatted("{}{} ({}{})", text.empty() ? "" : ", ", interface.name, interface.address.host(),
                      interface.up ? "" : ", down");
  }
  return text.empty() ? "none" : text;
}

}  // namespace

bool same_subnet(const Interface& interface, const SocketAddress& other) {
  if (!other.valid() || interface.address.family() != other.family()) return false;
  const auto a = raw(interface.address.data()), b = raw(other.data());
  const auto whole = static_cast<std::size_t>(interface.prefix_length / 8);
  const int rest = interface.prefix_length % 8;
  if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(whole), b.begin())) return false;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

Result<std::vector<Interface>> system_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Status::system(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);

  std::vector<std::string_view> names;  // in order of appearance
  std::vector<std::pair<std::size_t, Interface>> found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const sa_family_t family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface interface;
    interface.name = at->ifa_name;
    interface.address =
        SocketAddress(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    interface.up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
    interface.prefix_length = family == AF_INET ? 32 : 128;
    if (at->ifa_netmask != nullptr && at->ifa_netmask->sa_family == family) {
      interface.prefix_length = 0;
      for (const std::uint8_t byte : raw(at->ifa_netmask)) interface.prefix_length += std::popcount(byte);
    }
    const auto name = std::find(names.begin(), names.end(), at->ifa_name);
    found.emplace_back(static_cast<std::size_t>(name - names.begin()), std::move(interface));
    if (name == names.end()) names.emplace_back(at->ifa_name);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.first, a.second.address.family() != AF_INET) <
           std::tuple(b.first, b.second.address.family() != AF_INET);
  });
  std::vector<Interface> interfaces;
  interfaces.reserve(found.size());
  for (auto& [order, interface] : found) interfaces.push_back(std::move(interface));
  return interfaces;
}

Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all, std::string_view pattern,
                                                 SocketFamily family, const SocketAddress& toward) {
  const Pattern wanted = parse_pattern(pattern);
  const bool by_name = !pattern.empty() && !wanted.exclude;

  // Every usable address with its place in the order; lower is better.
  struct Candidate {
    std::tuple<std::size_t, int> interface_place;  // by the pattern, then by kind
    int address_place;
    const Interface* interface;
  };
  std::vector<Candidate> candidates;
  for (const Interface& interface : all) {
    const SocketAddress& address = interface.address;
    if (!interface.up || !of_family(address, family)) continue;
    if (address.is_link_local() && (address.family() == AF_INET6 || !by_name)) continue;
    const auto match = wanted.find(interface.name);
    if (by_name ? !match : match || is_private_to_host(interface.name)) continue;

    const bool neighbour = same_subnet(interface, toward);
    const int kind = neighbour || (toward.is_loopback() && address.is_loopback()) ? 0
                     : interface.name.starts_with("ib")                           ? 1
                     : !address.is_loopback()                                     ? 2
                                                                                  : 3;
    const int address_kind = neighbour                                               ? 0
                             : address.is_link_local()                               ? 4
                             : toward.valid() && address.family() == toward.family() ? 1
                             : address.family() == AF_INET                           ? 2
                                                                                     : 3;
    candidates.push_back({{by_name ? *match : 0, kind}, address_kind, &interface});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.interface_place, a.address_place) < std::tie(b.interface_place, b.address_place);
  });

  std::vector<Interface> chosen;
  for (const Candidate& candidate : candidates) {
    const bool idle_loopback = !by_name && std::get<1>(candidate.interface_place) == 3;
    if (idle_loopback && !chosen.empty()) continue;
    const bool known = std::any_of(chosen.begin(), chosen.end(), [&](const Interface& earlier) {
      return earlier.name == candidate.interface->name;
    });
    if (!known) chosen.push_back(*candidate.interface);
  }
  if (!chosen.empty()) return chosen;
  const std::string_view of = family == SocketFamily::kIPv4   ? " with an IPv4 address"
                              : family == SocketFamily::kIPv6 ? " with an IPv6 address"
                                                              : "";
  if (pattern.empty()) {
    return Status::error(
        Code::kInvalidUsage,
        "no usable network interface{}; name one by ONEBIT_SOCKET_IFNAME; this machine has: {}", of,
        list_of(all));
  }
  return Status::error(
      Code::kInvalidUsage,
      "ONEBIT_SOCKET_IFNAME (or NCCL_SOCKET_IFNAME) is '{}', which leaves no usable interface{}; "
      "this machine has: {}",
      pattern, of, list_of(all));
}

}  // namespace onebit::bootstrap
