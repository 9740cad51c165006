// What contexts, listeners and endpoints of verbs share: the open ports. The rest is in controlled_core.h.
//
// Threads: those of the context.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "transport/controlled_core.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

static_assert(kMaxPorts == Device::kMaxAddresses);

/// A range, held with each port of a connection.
using PortHolds = std::array<RegisteredMemory::Hold, kMaxPorts>;

class VerbsCore final : public ControlledCore, public DeviceListener {
 public:
  /// `devices`: the ports of each, 1 to kMaxPorts.
  /// `gpus`: messages may lie in the memory of GPUs.
  VerbsCore(const Settings& s, const VerbsLibrary& l, std::vector<std::vector<VerbsPort>> devices,
            const QueueSizes& q, bool gpus)
      : ControlledCore(s), sizes(q), with_gpus(gpus), library_(l), devices_(std::move(devices)) {}
  ~VerbsCore() override = default;

  std::string_view name() const noexcept override { return "verbs"; }
  std::byte mark() const noexcept override { return std::byte{0x80}; }
  Status check_device(std::size_t device) override { return ports(device).status(); }
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& to,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<ControlledEndpoint>> accepted(std::size_t device,
                                                       std::unique_ptr<Endpoint> over) override;
  Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) override;
  Result<std::unique_ptr<Memory>> register_dma_buf(void* data, std::size_t bytes,
                                                   const DmaBuf& buffer) override;
  bool poll() override;
  Status arm() override;
  void on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) override;

  /// The ports of the device with this index, opened.
  Result<std::vector<OpenPort*>> ports(std::size_t device);
  /// Holds a range with each of the ports: by `memory`, which may be null, where that covers it.
  static Result<PortHolds> hold(std::span<OpenPort* const> ports, const void* data, std::size_t bytes,
                                bool writable, Memory* memory);

  const QueueSizes sizes;
  const bool with_gpus;

 private:
  template <typename... How>
  Result<std::unique_ptr<Memory>> registered(void* data, std::size_t bytes, const How&... how);
  Result<OpenPort*> open(const VerbsPort& port);

  const VerbsLibrary& library_;
  std::vector<std::vector<VerbsPort>> devices_;
  std::vector<std::unique_ptr<OpenPort>> open_;  ///< those that were used
};

}  // namespace onebit::transport
