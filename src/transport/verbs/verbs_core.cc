#include "transport/verbs/verbs_core.h"

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {
namespace {

/// What a user holds registered, with every port that was open then.
class VerbsMemory final : public Memory {
 public:
  VerbsMemory(std::shared_ptr<ControlledCore> core, std::span<const std::byte> range)
      : core_(std::move(core)), range_(range) {}
  ~VerbsMemory() override = default;

  void add(const OpenPort& port, RegisteredMemory::Hold hold) { holds_.push_back({&port, std::move(hold)}); }
  /// Null where it does not cover the range, or the port was not open.
  const RegisteredMemory::Hold* find(const OpenPort& port, const void* data,
                                     std::size_t bytes) const noexcept {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(range_.data());
    if (offset > range_.size() || bytes > range_.size() - offset) return nullptr;
    for (const Held& held : holds_) {
      if (held.port == &port) return &held.hold;
    }
    return nullptr;
  }

 private:
  struct Held {
    const OpenPort* port;
    RegisteredMemory::Hold hold;
  };
  std::shared_ptr<ControlledCore> core_;
  std::span<const std::byte> range_;
  std::vector<Held> holds_;
};

VerbsEndpoint& verbs(CommonEndpoint* endpoint) noexcept {
  return static_cast<VerbsEndpoint&>(*endpoint);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> VerbsCore::connect(std::size_t device, const Handle& to,
                                                     std::span<const std::byte> hello) {
  const auto self = std::static_pointer_cast<VerbsCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::connect(self, device, to, hello));
  return std::unique_ptr<Endpoint>(std::move(made));
}

Result<std::unique_ptr<ControlledEndpoint>> VerbsCore::accepted(std::size_t device,
                                                                std::unique_ptr<Endpoint> over) {
  const auto self = std::static_pointer_cast<VerbsCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::accepted(self, device, std::move(over)));
  return std::unique_ptr<ControlledEndpoint>(std::move(made));
}

template <typename... How>
Result<std::unique_ptr<Memory>> VerbsCore::registered(void* data, std::size_t bytes, const How&... how) {
  auto made = std::make_unique<VerbsMemory>(shared_from_this(),
                                            std::span(static_cast<const std::byte*>(data), bytes));
  for (const auto& port : open_) {
    if (bytes == 0) break;
    ONEBIT_ASSIGN_OR_RETURN(auto hold, port->memory().hold(data, bytes, how...));
    made->add(*port, std::move(hold));
  }
  return std::unique_ptr<Memory>(std::move(made));
}

Result<std::unique_ptr<Memory>> VerbsCore::register_memory(void* data, std::size_t bytes) {
  return registered(data, bytes, true);
}

Result<std::unique_ptr<Memory>> VerbsCore::register_dma_buf(void* data, std::size_t bytes,
                                                            const DmaBuf& buffer) {
  return registered(data, bytes, buffer);
}

Result<PortHolds> VerbsCore::hold(std::span<OpenPort* const> ports, const void* data, std::size_t bytes,
                                  bool writable, Memory* memory) {
  const auto* const known = dynamic_cast<const VerbsMemory*>(memory);
  PortHolds made;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const auto* const held = known != nullptr ? known->find(*ports[i], data, bytes) : nullptr;
    if (held != nullptr) {
      made[i] = held->share();
      continue;
    }
    ONEBIT_ASSIGN_OR_RETURN(made[i], ports[i]->memory().hold(data, bytes, writable));
  }
  return made;
}

bool VerbsCore::poll() {
  bool any = false;
  for (CommonEndpoint* const endpoint : endpoints) any |= verbs(endpoint).poll();
  return any;
}

Status VerbsCore::arm() {
  for (CommonEndpoint* const endpoint : endpoints) ONEBIT_RETURN_IF_ERROR(verbs(endpoint).arm());
  return Status();
}

Result<std::vector<OpenPort*>> VerbsCore::ports(std::size_t device) {
  if (device >= devices_.size()) {
    return Status::error(Code::kInvalidArgument, "device {} of the verbs transport, which has {}", device,
                         devices_.size());
  }
  std::vector<OpenPort*> opened;
  for (const VerbsPort& port : devices_[device]) {
    ONEBIT_ASSIGN_OR_RETURN(OpenPort* const each, open(port));
    opened.push_back(each);
  }
  return opened;
}

Result<OpenPort*> VerbsCore::open(const VerbsPort& port) {
  for (const auto& each : open_) {
    if (each->port().name() == port.name()) return each.get();
  }
  ONEBIT_ASSIGN_OR_RETURN(const PortAddress address,
                          choose_address(port, settings.ib_gid_index, settings.socket_family));
  ONEBIT_ASSIGN_OR_RETURN(auto made, OpenPort::open(library_, port, address, with_gpus, poller, *this));
  return open_.emplace_back(std::move(made)).get();
}

void VerbsCore::on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) {
  const bool all = pair == nullptr && completions == nullptr;
  for (CommonEndpoint* const endpoint : endpoints) {
    if (!all && !verbs(endpoint).owns(pair, completions)) continue;
    endpoint->fail(Status::error(Code::kSystemError, "{}: the connection broke: {}", endpoint->peer(), what));
  }
}

}  // namespace onebit::transport
