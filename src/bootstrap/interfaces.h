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

/// The usable interfaces in order of preference, first address per name. `pattern` as NCCL_SOCKET_IFNAME:
/// optional ^ (exclude), optional = (exact names, else prefixes), names with commas. Without a pattern: the
/// interface through which `toward` is reached (same subnet, or loopback when `toward` is loopback) first,
/// then ib*, then the others; never docker*, virbr*, veth*, br-*, link-local; loopback last and only when
/// nothing else is there or `toward` is on it. An error says what was asked for and lists what there is.
Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all, std::string_view pattern,
                                                 SocketFamily family, const SocketAddress& toward);

}  // namespace onebit::bootstrap
