// What contexts, listeners and endpoints of verbs share: the open ports. The rest is in controlled_core.h.
//
// Threads: those of the context.
#pragma once

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

class VerbsCore final : public ControlledCore, public DeviceListener {
 public:
  VerbsCore(const Settings& s, const VerbsLibrary& l, std::vector<VerbsPort> p, const QueueSizes& q)
      : ControlledCore(s), sizes(q), library_(l), ports_(std::move(p)), open_(ports_.size()) {}
  ~VerbsCore() override = default;

  std::string_view name() const noexcept override { return "verbs"; }
  std::byte mark() const noexcept override { return std::byte{0x80}; }
  Status check_device(std::size_t device) override { return port(device).status(); }
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& to,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<Endpoint>> accepted(std::size_t device, std::unique_ptr<Endpoint> over) override;
  Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) override;
  bool poll() override;
  Status arm() override;
  void on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) override;

  /// The port with this index, opened.
  Result<OpenPort*> port(std::size_t index);

  const QueueSizes sizes;

 private:
  const VerbsLibrary& library_;
  std::vector<VerbsPort> ports_;
  std::vector<std::unique_ptr<OpenPort>> open_;  ///< by index; null until first used
};

}  // namespace onebit::transport
