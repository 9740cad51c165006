#include "nccl_net/devices.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "nccl_net/abi.h"

namespace onebit::nccl_net {
namespace {

/// What NCCL's own transports say where the system does not know.
constexpr int kUnknownSpeed = 10'000;

int pointers_of(const transport::Device& device) {
  return abi::kPointerHost | (device.takes_peer_memory ? abi::kPointerCuda : 0) |
         (device.takes_dma_bufs ? abi::kPointerDmaBuf : 0);
}

/// A copy of `text` that is there for ever, once for each text.
char* interned(std::string_view text) {
  static std::mutex mutex;
  static auto& all = *new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  auto at = all.find(text);
  if (at == all.end()) at = all.emplace(text).first;
  return const_cast<char*>(at->c_str());  // NCCL's field is not const, and it only reads
}

}  // namespace

Result<std::shared_ptr<Setup>> Setup::read() {
  ONEBIT_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
  warn_of_unknown_variables();
  std::shared_ptr<Setup> made(new Setup(std::move(settings)));
  ONEBIT_ASSIGN_OR_RETURN(made->transport_, transport::choose(made->settings_));
  ONEBIT_ASSIGN_OR_RETURN(made->interfaces_, transport::find_devices(made->transport_.transport,
                                                                     made->settings_, SocketAddress()));
  for (const transport::Device& interface : made->interfaces_) {
    const auto asked = static_cast<int>(made->settings_.net_speed);
    const auto known = static_cast<int>(interface.speed_mbps);
    made->add(interface.name, interface.pci_path,
              asked > 0   ? asked
              : known > 0 ? known
                          : kUnknownSpeed,
              pointers_of(interface), {static_cast<int>(made->devices_.size())});
  }
  return made;
}

void Setup::add(std::string_view name, std::string_view pci_path, int speed_mbps, int pointers,
                std::vector<int> members) {
  DeviceProperties device;
  device.name = interned(name);
  device.pci_path = pci_path.empty() ? nullptr : interned(pci_path);
  const std::string_view identity = pci_path.empty() || members.size() > 1 ? name : pci_path;
  device.guid = XXH3_64bits(identity.data(), identity.size());
  device.speed_mbps = speed_mbps;
  device.pointers = pointers;
  device.members = std::move(members);
  devices_.push_back(std::move(device));
}

bool Setup::same_as(const Setup& other) const {
  const std::lock_guard lock(mutex_);
  return devices_.size() == interfaces_.size() &&
         print_settings(settings_) == print_settings(other.settings_) &&
         std::ranges::equal(interfaces_, other.interfaces_, [](const auto& a, const auto& b) {
           return a.name == b.name && a.address == b.address && a.speed_mbps == b.speed_mbps &&
                  a.pci_path == b.pci_path && pointers_of(a) == pointers_of(b);
         });
}

int Setup::device_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(devices_.size());
}

Result<DeviceProperties> Setup::properties(int device) const {
  const std::lock_guard lock(mutex_);
  if (device < 0 || static_cast<std::size_t>(device) >= devices_.size()) {
    return Status::error(Code::kInvalidArgument, "device {}, and there are {}", device, devices_.size());
  }
  return devices_[static_cast<std::size_t>(device)];
}

Result<int> Setup::merge(std::span<const int> members) {
  if (members.empty() || members.size() > transport::Device::kMaxAddresses) {
    return Status::error(Code::kInvalidArgument, "{} devices to merge: it must be 1 to {}", members.size(),
                         transport::Device::kMaxAddresses);
  }
  std::string name;
  int speed = 0;
  int pointers = ~0;
  std::string_view pci_path;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || static_cast<std::size_t>(members[i]) >= interfaces_.size() ||
        std::find(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(i), members[i]) !=
            members.begin() + static_cast<std::ptrdiff_t>(i)) {
      return Status::error(Code::kInvalidArgument,
                           "device {} to merge: it must be one of the {} interfaces, each once", members[i],
                           interfaces_.size());
    }
    const transport::Device& interface = interfaces_[static_cast<std::size_t>(members[i])];
    if (members.size() > 1 && !interface.may_be_merged) {
      return Status::error(Code::kInvalidUsage,
                           "{} cannot be merged with others: transport {} does not stripe", interface.name,
                           transport_.transport);
    }
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (std::ranges::equal(devices_[i].members, members)) return static_cast<int>(i);
  }
  for (const int member : members) {
    const DeviceProperties& device = devices_[static_cast<std::size_t>(member)];
    name += formatted("{}{}", name.empty() ? "" : "+", device.name);
    speed += device.speed_mbps;
    pointers &= device.pointers;
    if (pci_path.empty() && device.pci_path != nullptr) pci_path = device.pci_path;
  }
  add(name, pci_path, speed, pointers, {members.begin(), members.end()});
  return static_cast<int>(devices_.size()) - 1;
}

Result<std::unique_ptr<transport::Context>> Setup::make_context(int device,
                                                                std::uint32_t traffic_class) const {
  ONEBIT_ASSIGN_OR_RETURN(const DeviceProperties chosen, properties(device));
  transport::Device merged = interfaces_[static_cast<std::size_t>(chosen.members.front())];
  if (chosen.members.size() > 1) merged.members.push_back(merged.name);
  merged.name = chosen.name;
  merged.takes_peer_memory = (chosen.pointers & abi::kPointerCuda) != 0;
  merged.takes_dma_bufs = (chosen.pointers & abi::kPointerDmaBuf) != 0;
  for (std::size_t i = 1; i < chosen.members.size(); ++i) {
    const transport::Device& further = interfaces_[static_cast<std::size_t>(chosen.members[i])];
    merged.more_addresses.push_back(further.address);
    merged.members.push_back(further.name);
  }
  Settings settings = settings_;
  if (settings.traffic_class == 0) settings.traffic_class = traffic_class;
  return transport::make_context(transport_.transport, settings, {std::move(merged)});
}

std::string Setup::describe() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (std::size_t i = 0; i < interfaces_.size(); ++i) {
    text += formatted("{}{} ({}, {} Mbit/s)", text.empty() ? "" : ", ", interfaces_[i].name,
                      interfaces_[i].address.host(), devices_[i].speed_mbps);
  }
  return text;
}

}  // namespace onebit::nccl_net
