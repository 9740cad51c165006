#include "transport/verbs/verbs_core.h"

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {

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
  for (VerbsEndpoint* const endpoint : endpoints) {
    if (!all && !endpoint->owns(pair, completions)) continue;
    endpoint->fail(Status::error(Code::kSystemError, "{}: the connection broke: {}", endpoint->peer(), what));
  }
}

}  // namespace onebit::transport
