#include "transport/verbs/verbs_listener.h"

#include "transport/verbs/verbs_endpoint.h"

namespace onebit::transport {

Handle marked(Handle handle) noexcept {
  handle.bytes[0] ^= std::byte{0x80};  // of the magic, which is text
  return handle;
}

Result<std::unique_ptr<Endpoint>> VerbsListener::accept_into(const std::shared_ptr<VerbsCore>& core) {
  ONEBIT_ASSIGN_OR_RETURN(auto control, core->control->accept(*control_));
  if (control == nullptr) return std::unique_ptr<Endpoint>();
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::accepted(core, port_, std::move(control)));
  return std::unique_ptr<Endpoint>(std::move(made));
}

}  // namespace onebit::transport
