#include "transport/verbs/verbs_core.h"

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {
namespace {

/// What a user holds registered, with every port that was open then.
class VerbsMemory final : public Memory {
 public:
  VerbsMemory(std::shared_ptr<ControlledCore> core, std::vector<RegisteredMemory::Hold> holds)
      : core_(std::move(core)), holds_(std::move(holds)) {}
  ~VerbsMemory() override = default;

 private:
  std::shared_ptr<ControlledCore> core_;
  std::vector<RegisteredMemory::Hold> holds_;
};

VerbsEndpoint& verbs(ControlledEndpoint* endpoint) noexcept {
  return static_cast<VerbsEndpoint&>(*endpoint);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> VerbsCore::connect(std::size_t device, const Handle& to,
                                                     std::span<const std::byte> hello) {
  const auto self = std::static_pointer_cast<VerbsCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::connect(self, device, to, hello));
  return std::unique_ptr<Endpoint>(std::move(made));
}

Result<std::unique_ptr<Endpoint>> VerbsCore::accepted(std::size_t device, std::unique_ptr<Endpoint> over) {
  const auto self = std::static_pointer_cast<VerbsCore>(shared_from_this());
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::accepted(self, device, std::move(over)));
  return std::unique_ptr<Endpoint>(std::move(made));
}

Result<std::unique_ptr<Memory>> VerbsCore::register_memory(void* data, std::size_t bytes) {
  std::vector<RegisteredMemory::Hold> holds;
  for (const auto& port : open_) {
    if (port == nullptr || bytes == 0) continue;
    ONEBIT_ASSIGN_OR_RETURN(auto hold, port->memory().hold(data, bytes, true));
    holds.push_back(std::move(hold));
  }
  return std::unique_ptr<Memory>(std::make_unique<VerbsMemory>(shared_from_this(), std::move(holds)));
}

bool VerbsCore::poll() {
  bool any = false;
  for (ControlledEndpoint* const endpoint : endpoints) any |= verbs(endpoint).poll();
  return any;
}

Status VerbsCore::arm() {
  for (ControlledEndpoint* const endpoint : endpoints) ONEBIT_RETURN_IF_ERROR(verbs(endpoint).arm());
  return Status();
}

Result<OpenPort*> VerbsCore::port(std::size_t index) {
  if (index >= ports_.size()) {
    return Status::error(Code::kInvalidArgument, "device {} of the verbs transport, which has {}", index,
                         ports_.size());
  }
  if (open_[index] == nullptr) {
    const VerbsPort& port = ports_[index];
    ONEBIT_ASSIGN_OR_RETURN(const PortAddress address,
                            choose_address(port, settings.ib_gid_index, settings.socket_family));
    ONEBIT_ASSIGN_OR_RETURN(open_[index], OpenPort::open(library_, port, address, poller, *this));
  }
  return open_[index].get();
}

void VerbsCore::on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) {
  const bool all = pair == nullptr && completions == nullptr;
  for (ControlledEndpoint* const endpoint : endpoints) {
    if (!all && !verbs(endpoint).owns(pair, completions)) continue;
    endpoint->fail(Status::error(Code::kSystemError, "{}: the connection broke: {}", endpoint->peer(), what));
  }
}

}  // namespace onebit::transport
