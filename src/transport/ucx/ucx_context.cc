#include <exception>

#include "transport/controlled_context.h"
#include "transport/tcp/tcp.h"
#include "transport/ucx/ucx.h"
#include "transport/ucx/ucx_core.h"

namespace onebit::transport {

Result<std::vector<Device>> ucx_devices(const Settings& settings, const SocketAddress& toward) {
  ONEBIT_RETURN_IF_ERROR(ucx_library().status());
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Device> ways, tcp_devices(settings, toward));
  Device device;
  device.name = "ucx";
  device.address = ways.front().address;
  device.speed_mbps = ways.front().speed_mbps;
  device.pci_path = ways.front().pci_path;
  return std::vector<Device>{std::move(device)};
}

Result<std::unique_ptr<Context>> make_ucx_context(const Settings& settings, std::vector<Device> devices,
                                                  const UcxWindow& window) try {
  if (devices.size() != 1) return Status(Code::kInvalidArgument, "a UCX context has one device");
  ONEBIT_ASSIGN_OR_RETURN(const UcxLibrary* const library, ucx_library());
  auto core = std::make_shared<UcxCore>(settings, *library, window);
  ONEBIT_RETURN_IF_ERROR(core->open());
  return make_controlled_context(std::move(core), std::move(devices));
} catch (const std::exception& e) {
  return Status::error(Code::kSystemError, "UCX transport: {}", e.what());
}

}  // namespace onebit::transport
