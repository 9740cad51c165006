#include "transport/verbs/verbs_ports.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace onebit::transport {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::uint8_t, 12> kIPv4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

bool is_zero(const ibv_gid& gid) noexcept {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](std::uint8_t byte) { return byte == 0; });
}
bool is_link_local(const ibv_gid& gid) noexcept {
  return gid.raw[0] == 0xFE && (gid.raw[1] & 0xC0) == 0x80;
}

/// Of one lane, in Mbit/s; InfiniBand's codes.
std::uint32_t lane_speed(std::uint8_t code) {
  switch (code) {
    case 1:
      return 2'500;
    case 2:
      return 5'000;
    case 4:
    case 8:
      return 10'000;
    case 16:
      return 14'000;
    case 32:
      return 25'000;
    case 64:
      return 50'000;
    case 128:
      return 100'000;
    default:
      return 0;
  }
}
std::uint32_t lanes(std::uint8_t code) {
  switch (code) {
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 1;
  }
}

std::vector<PortAddress> addresses_of(const VerbsLibrary& library, ibv_context* context,
                                      const std::string& device, std::uint8_t port, int count) {
  std::vector<PortAddress> found;
  for (int index = 0; index < count; ++index) {
    PortAddress address;
    address.index = index;
    if (library.query_gid(context, port, index, &address.gid) != 0 || is_zero(address.gid)) continue;
    std::ifstream file(
        formatted("/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{}", device, port, index));
    std::string type;
    std::getline(file, type);
    address.is_v2 = type == "RoCE v2";
    found.push_back(address);
  }
  return found;
}

/// Its PCI device; a software device has none.
std::string pci_path(const std::string& device) {
  std::error_code error;
  const fs::path path = fs::canonical("/sys/class/infiniband/" + device + "/device", error);
  return error ? std::string() : path.string();
}

/// Asks for what is impossible: a device that could says that the descriptor is bad.
bool takes_dma_bufs(const VerbsLibrary& library, ibv_context* context) {
  if (library.reg_dmabuf_mr == nullptr) return false;
  const VerbsDomain domain(library, library.alloc_pd(context));
  if (!domain) return false;
  const VerbsRegion none(library, library.reg_dmabuf_mr(domain.get(), 0, 0, 0, -1, 0));
  return !none && errno == EBADF;
}

std::string describe(const std::vector<VerbsPort>& ports) {
  std::string text;
  for (const VerbsPort& port : ports) {
    text += formatted("{}{} ({})", text.empty() ? "" : ", ", port.name(), port.active ? "active" : "down");
  }
  return text.empty() ? "none" : text;
}

struct Name {
  std::string_view device;
  int port = 0;  ///< 0 = any
};
std::vector<Name> names_in(std::string_view list) {
  std::vector<Name> names;
  while (!list.empty()) {
    const auto end = std::min(list.find(','), list.size());
    Name name{list.substr(0, end)};
    list.remove_prefix(std::min(end + 1, list.size()));
    if (const auto colon = name.device.find(':'); colon != std::string_view::npos) {
      const std::string_view number = name.device.substr(colon + 1);
      std::from_chars(number.data(), number.data() + number.size(), name.port);
      name.device = name.device.substr(0, colon);
    }
    if (!name.device.empty()) names.push_back(name);
  }
  return names;
}

/// How well an address serves, higher is better.
int rank_of(const VerbsPort& port, const PortAddress& address, SocketFamily family) {
  if (!port.ethernet) return 0;
  int rank = address.is_v2 ? 8 : 0;
  if (is_link_local(address.gid)) return rank;
  rank += 2;
  if (is_ipv4(address.gid) != (family == SocketFamily::kIPv6)) rank += 1;
  return rank;
}

}  // namespace

bool is_ipv4(const ibv_gid& gid) noexcept {
  return std::equal(kIPv4Prefix.begin(), kIPv4Prefix.end(), std::begin(gid.raw));
}

std::string gid_text(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(gid)) {
    ::inet_ntop(AF_INET, gid.raw + kIPv4Prefix.size(), text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, gid.raw, text.data(), text.size());
  }
  return text.data();
}

std::string fabric_of(const VerbsPort& port, const PortAddress& address) {
  if (!port.ethernet) {
    ibv_gid subnet = address.gid;
    std::fill(std::begin(subnet.raw) + 8, std::end(subnet.raw), std::uint8_t{0});
    return formatted("InfiniBand, subnet {}", gid_text(subnet));
  }
  return formatted("RoCE {}, {}", address.is_v2 ? "v2" : "v1", is_ipv4(address.gid) ? "IPv4" : "IPv6");
}

Result<std::vector<VerbsPort>> all_ports(const VerbsLibrary& library) {
  int count = 0;
  ibv_device** const devices = library.get_device_list(&count);
  if (devices == nullptr) {
    return Status::system(errno, "ibv_get_device_list (are the RDMA drivers of the kernel loaded?)");
  }
  std::vector<VerbsPort> ports;
  for (int i = 0; i < count; ++i) {
    const std::string name = library.get_device_name(devices[i]);
    const VerbsDevice opened(library, library.open_device(devices[i]));
    ibv_device_attr attributes{};
    if (!opened || library.query_device(opened.get(), &attributes) != 0) continue;
    const bool dma_bufs = takes_dma_bufs(library, opened.get());
    for (std::uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr state{};
      if (library.query_port(opened.get(), number, &state) != 0) continue;
      VerbsPort& port = ports.emplace_back();
      port.device = name;
      port.number = number;
      port.active = state.state == IBV_PORT_ACTIVE;
      port.ethernet = state.link_layer == IBV_LINK_LAYER_ETHERNET;
      port.lid = state.lid;
      port.mtu = state.active_mtu;
      port.speed_mbps = lane_speed(state.active_speed) * lanes(state.active_width);
      port.pci_path = pci_path(name);
      port.takes_dma_bufs = dma_bufs;
      port.addresses = addresses_of(library, opened.get(), name, number, state.gid_tbl_len);
    }
  }
  library.free_device_list(devices);
  return ports;
}

Result<std::vector<VerbsPort>> choose_ports(const std::vector<VerbsPort>& all, std::string_view pattern) {
  std::string_view rest = pattern;
  const bool exclude = rest.starts_with('^');
  if (exclude) rest.remove_prefix(1);
  const bool exact = rest.starts_with('=');
  if (exact) rest.remove_prefix(1);
  const std::vector<Name> names = names_in(rest);
  const auto matches = [&](const VerbsPort& port, const Name& name) {
    const bool same = exact ? port.device == name.device : port.device.starts_with(name.device);
    return same && (name.port == 0 || name.port == port.number);
  };
  std::vector<VerbsPort> chosen;
  const auto take = [&](const VerbsPort& port) {
    const bool have = std::any_of(chosen.begin(), chosen.end(),
                                  [&](const VerbsPort& other) { return other.name() == port.name(); });
    if (port.active && !have) chosen.push_back(port);
  };
  if (exclude || names.empty()) {
    for (const VerbsPort& port : all) {
      if (std::none_of(names.begin(), names.end(), [&](const Name& name) { return matches(port, name); }))
        take(port);
    }
  } else {
    for (const Name& name : names) {
      for (const VerbsPort& port : all) {
        if (matches(port, name)) take(port);
      }
    }
  }
  if (!chosen.empty()) return chosen;
  if (pattern.empty()) {
    return Status::error(Code::kSystemError,
                         "no RDMA port is active (there are: {}): bring one up, or set ONEBIT_TRANSPORT=tcp",
                         describe(all));
  }
  return Status::error(Code::kInvalidArgument,
                       "ONEBIT_IB_HCA={}: no active RDMA port is so named; there are: {}", pattern,
                       describe(all));
}

Result<PortAddress> choose_address(const VerbsPort& port, int index, SocketFamily family) {
  std::string there;
  const PortAddress* best = nullptr;
  for (const PortAddress& address : port.addresses) {
    if (address.index == index) return address;
    there += formatted("{}{} = {}", there.empty() ? "" : ", ", address.index, gid_text(address.gid));
    if (best == nullptr || rank_of(port, address, family) > rank_of(port, *best, family)) best = &address;
  }
  if (index >= 0 || best == nullptr) {
    return Status::error(
        Code::kInvalidArgument,
        "{} has no GID with the index {} (ONEBIT_IB_GID_INDEX; -1 leaves the choice to onebit); "
        "there are: {}",
        port.name(), index, there.empty() ? "none: its interface has no address" : there);
  }
  return *best;
}

}  // namespace onebit::transport
