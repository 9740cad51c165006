// The ports that the verbs transport can use: which of the machine's, with which address (GID), how fast.
//
// The choice follows NCCL's variables: a list of names as NCCL_IB_HCA has it, and a GID by its index or,
// without one, by type and family. The choosing is in pure functions over what was found. Threads: any.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "transport/verbs/verbs_library.h"

namespace onebit::transport {

/// An entry of a port's table of addresses.
struct PortAddress {
  int index = 0;
  ibv_gid gid{};
  bool is_v2 = false;  ///< RoCE v2 (over UDP); false for RoCE v1 and InfiniBand
};

struct VerbsPort {
  std::string device;  ///< "mlx5_0"
  std::uint8_t number = 1;
  bool active = false;
  bool ethernet = false;
  std::uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint32_t speed_mbps = 0;
  std::string pci_path;
  bool takes_dma_bufs = false;
  std::vector<PortAddress> addresses;

  std::string name() const { return formatted("{}:{}", device, number); }
};

/// Every port of every device.
Result<std::vector<VerbsPort>> all_ports(const VerbsLibrary& library);

/// The active ports that `pattern` names, in its order where it names them, never empty when ok. The pattern
/// is written as NCCL_IB_HCA: an optional ^ (all but these), an optional = (exact names, else prefixes), then
/// names with commas, each with an optional :port. An error says what was asked for and lists what there is.
Result<std::vector<VerbsPort>> choose_ports(const std::vector<VerbsPort>& all, std::string_view pattern);

/// The address that a port is reached at: the one of `index`, or where that is -1, of RoCE the first v2 one
/// that is IPv4, then IPv6 that is routed, then link-local, then v1 (with AF_INET6, IPv6 before IPv4); of
/// InfiniBand the first. An error lists what there is.
Result<PortAddress> choose_address(const VerbsPort& port, int index, SocketFamily family);

/// "10.77.0.1", "fd77::1" or, of InfiniBand, "fe80::...".
std::string gid_text(const ibv_gid& gid);
bool is_ipv4(const ibv_gid& gid) noexcept;

/// Ports with equal fabrics reach each other, as far as one can tell from here: "InfiniBand, subnet fe80::"
/// or "RoCE v2, IPv4".
std::string fabric_of(const VerbsPort& port, const PortAddress& address);

}  // namespace onebit::transport
