// The devices that NCCL sees: one for each usable interface, and those that it asks us to merge.
//
// A Setup is made at an init and does not change, but for merged devices, which are only added. Everything
// that was made under a Setup keeps it. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "transport/factory.h"

namespace onebit::nccl_net {

/// What NCCL is told of one device. The texts are never freed: NCCL keeps pointers to them.
struct DeviceProperties {
  char* name = nullptr;
  char* pci_path = nullptr;  ///< null for a device that is not on PCI
  std::uint64_t guid = 0;
  int speed_mbps = 0;
  int pointers = 0;          ///< kinds of memory that can be registered
  std::vector<int> members;  ///< the physical devices; itself for one
};

class Setup {
 public:
  /// Reads the settings and looks for interfaces. An error says what was asked for and what there is.
  static Result<std::shared_ptr<Setup>> read();

  const Settings& settings() const noexcept { return settings_; }
  /// Made of the same settings and interfaces, and nothing was merged since.
  bool same_as(const Setup& other) const;
  int device_count() const;
  /// kInvalidArgument for a device that there is not.
  Result<DeviceProperties> properties(int device) const;
  /// The number of the device that stripes over these; the same for the same ones.
  Result<int> merge(std::span<const int> members);
  /// A context of the transport that has `device` as its only one. `traffic_class` (0: none) is of use where
  /// the settings have none.
  Result<std::unique_ptr<transport::Context>> make_context(int device, std::uint32_t traffic_class) const;
  const transport::Choice& transport() const noexcept { return transport_; }
  /// "eth0 (10.0.0.1, 10000 Mbit/s), ..." for the log.
  std::string describe() const;

 private:
  explicit Setup(Settings settings) : settings_(std::move(settings)) {}
  void add(std::string_view name, std::string_view pci_path, int speed_mbps, int pointers,
           std::vector<int> members);

  const Settings settings_;
  transport::Choice transport_;
  std::vector<transport::Device> interfaces_;
  mutable std::mutex mutex_;
  std::vector<DeviceProperties> devices_;  ///< the interfaces first
};

}  // namespace onebit::nccl_net
