// The network devices of the TCP transport: the chosen interfaces, with their speed and place. No state.
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "bootstrap/interfaces.h"
#include "transport/tcp/tcp.h"

namespace onebit::transport {
namespace {

namespace fs = std::filesystem;

std::uint32_t link_speed(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  long speed = 0;
  return file >> speed && speed > 0 ? static_cast<std::uint32_t>(speed) : 0;
}

/// The PCI device that carries the interface. The interface of a virtio card hangs below its PCI device.
std::string pci_path(const std::string& name) {
  std::error_code error;
  fs::path device = fs::canonical("/sys/class/net/" + name + "/device", error);
  for (int up = 0; !error && up < 2; ++up) {
    const fs::path subsystem = fs::canonical(device / "subsystem", error);
    if (!error && subsystem.filename() == "pci") return device.string();
    device = device.parent_path();
  }
  return std::string();
}

}  // namespace

Result<std::vector<Device>> tcp_devices(const Settings& settings, const SocketAddress& toward) {
  ONEBIT_ASSIGN_OR_RETURN(const auto all, bootstrap::system_interfaces());
  ONEBIT_ASSIGN_OR_RETURN(const auto chosen, bootstrap::choose_interfaces(all, settings.socket_ifname,
                                                                          settings.socket_family, toward));
  std::vector<Device> devices;
  for (const bootstrap::Interface& interface : chosen) {
    Device& device = devices.emplace_back();
    device.name = interface.name;
    device.address = interface.address;
    device.speed_mbps = link_speed(interface.name);
    device.pci_path = pci_path(interface.name);
    device.may_be_merged = true;
  }
  return devices;
}

}  // namespace onebit::transport
