// How a context of verbs is made: the ports that the settings choose, as devices. No state; any thread.
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "transport/controlled_context.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_core.h"

namespace onebit::transport {
namespace {

/// The ports that carry the names of each device.
Result<std::vector<std::vector<VerbsPort>>> ports_of(const VerbsLibrary& library,
                                                     const std::vector<Device>& devices) {
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<VerbsPort> all, all_ports(library));
  std::vector<std::vector<VerbsPort>> found;
  for (const Device& device : devices) {
    const std::vector<std::string> names =
        device.members.empty() ? std::vector<std::string>{device.name} : device.members;
    if (names.size() > kMaxPorts) {
      return Status::error(Code::kInvalidArgument, "a connection over {} RDMA ports: at most {} are possible",
                           names.size(), kMaxPorts);
    }
    std::vector<VerbsPort>& ports = found.emplace_back();
    for (const std::string& name : names) {
      const auto port =
          std::find_if(all.begin(), all.end(), [&](const VerbsPort& p) { return p.name() == name; });
      if (port == all.end()) {
        return Status::error(Code::kInvalidArgument, "{} is no RDMA port of this machine", name);
      }
      ports.push_back(*port);
    }
  }
  return found;
}

/// The module that lets RDMA devices register memory of GPUs by its address, by one of its names.
bool kernel_has_peer_memory() {
  constexpr const char* kPlaces[] = {"/sys/module/nvidia_peermem/version",
                                     "/sys/kernel/mm/memory_peers/nv_mem/version"};
  return std::any_of(std::begin(kPlaces), std::end(kPlaces),
                     [](const char* place) { return ::access(place, F_OK) == 0; });
}

Result<std::vector<VerbsPort>> chosen_ports(const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const VerbsLibrary* const library, verbs_library());
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<VerbsPort> all, all_ports(*library));
  return choose_ports(all, settings.ib_hca);
}

}  // namespace

Result<std::string> verbs_fabric(const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const auto ports, chosen_ports(settings));
  ONEBIT_ASSIGN_OR_RETURN(const PortAddress address,
                          choose_address(ports.front(), settings.ib_gid_index, settings.socket_family));
  return fabric_of(ports.front(), address);
}

Result<std::vector<Device>> verbs_devices(const Settings& settings, const SocketAddress& toward) {
  ONEBIT_ASSIGN_OR_RETURN(const auto ports, chosen_ports(settings));
  ONEBIT_ASSIGN_OR_RETURN(const auto ways, tcp_devices(settings, toward));
  const bool peer_memory = kernel_has_peer_memory();
  std::vector<Device> devices;
  for (const VerbsPort& port : ports) {
    ONEBIT_RETURN_IF_ERROR(choose_address(port, settings.ib_gid_index, settings.socket_family).status());
    Device& device = devices.emplace_back();
    device.name = port.name();
    device.address = ways.front().address;
    device.speed_mbps = port.speed_mbps;
    device.pci_path = port.pci_path;
    device.takes_dma_bufs = port.takes_dma_bufs;
    device.takes_peer_memory = peer_memory;
    device.may_be_merged = true;
  }
  return devices;
}

Result<std::vector<Device>> verbs_rank_devices(const Settings& settings, const SocketAddress& toward) {
  ONEBIT_ASSIGN_OR_RETURN(std::vector<Device> devices, verbs_devices(settings, toward));
  for (Device& device : devices) device.takes_dma_bufs = device.takes_peer_memory = false;
  if (settings.ib_hca.empty()) return devices;
  ONEBIT_ASSIGN_OR_RETURN(const auto ports, chosen_ports(settings));
  std::string fabric;
  Device merged = devices.front();
  for (std::size_t i = 0; i < ports.size() && merged.members.size() < kMaxPorts; ++i) {
    ONEBIT_ASSIGN_OR_RETURN(const PortAddress address,
                            choose_address(ports[i], settings.ib_gid_index, settings.socket_family));
    if (i == 0) fabric = fabric_of(ports[i], address);
    if (fabric_of(ports[i], address) != fabric) continue;
    if (i > 0) merged.name += "+" + ports[i].name();
    merged.members.push_back(ports[i].name());
  }
  return std::vector<Device>{std::move(merged)};
}

Result<std::unique_ptr<Context>> make_verbs_context(const Settings& settings, std::vector<Device> devices,
                                                    const QueueSizes& sizes) try {
  if (devices.empty()) return Status(Code::kInvalidArgument, "a verbs context without a device");
  ONEBIT_ASSIGN_OR_RETURN(const VerbsLibrary* const library, verbs_library());
  ONEBIT_ASSIGN_OR_RETURN(auto ports, ports_of(*library, devices));
  const bool with_gpus = std::any_of(devices.begin(), devices.end(), [](const Device& device) {
    return device.takes_dma_bufs || device.takes_peer_memory;
  });
  auto core = std::make_shared<VerbsCore>(settings, *library, std::move(ports), sizes, with_gpus);
  return make_controlled_context(std::move(core), std::move(devices));
} catch (const std::exception& e) {
  return Status::error(Code::kSystemError, "verbs transport: {}", e.what());
}

}  // namespace onebit::transport
