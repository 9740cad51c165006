// Which network interface a rank uses: the rules of NCCL_SOCKET_IFNAME, and a sensible choice without them.
//
// Pure functions over the list that the system gives; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"

namespace onebit::bootstrap {

struct Interface {
  std::string name;
  SocketAddress address;  ///< port 0
  bool up = false;        ///< IFF_UP and IFF_RUNNING
  int prefix_length = 0;  ///< of the address, for "same subnet" questions
};

/// Every address of every interface of this machine (getifaddrs), IPv4 before IPv6 for one name.
Result<std::vector<Interface>> system_interfaces();

/// `other` is in the subnet of the interface's address.
bool same_subnet(const Interface& interface, const SocketAddress& other);

/// The usable interfaces in order of preference, one address per name.
///
/// `pattern` is written as NCCL_SOCKET_IFNAME: an optional ^ (all but these), an optional = (exact names,
/// else prefixes), names with commas. Unlike NCCL, which ignores them, patterns of one character count.
/// * Names that are asked for come in the order of the pattern, whatever they are called; a name that this
///   machine lacks is passed over as long as another matches.
/// * Without a pattern, or with ^: the interface through which `toward` is reached (same subnet, or loopback
///   when `toward` is loopback) first, then ib*, then the others; never docker*, virbr*, veth*, br-*,
///   link-local; loopback last and only when nothing else is there or `toward` is on it.
/// * Of an interface's addresses: one in the subnet of `toward`, else of its family, else IPv4 before IPv6.
///   IPv4 link-local only on an interface that was asked for; IPv6 link-local never, since peers cannot use
///   it.
/// `toward` may be invalid (none). An error says what was asked for and lists what there is.
Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all, std::string_view pattern,
                                                 SocketFamily family, const SocketAddress& toward);

}  // namespace onebit::bootstrap
