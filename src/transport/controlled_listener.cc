#include "transport/controlled_listener.h"

#include <utility>

namespace onebit::transport {

ControlledListener::ControlledListener(std::shared_ptr<ControlledCore> core, std::size_t device,
                                       std::unique_ptr<Listener> control)
    : core_(std::move(core)),
      device_(device),
      control_(std::move(control)),
      handle_(core_->marked(control_->handle())) {}

Result<std::unique_ptr<Endpoint>> ControlledListener::accept_into(ControlledCore& core) {
  ONEBIT_ASSIGN_OR_RETURN(auto control, core.control->accept(*control_));
  if (control != nullptr) {
    ONEBIT_ASSIGN_OR_RETURN(auto made, core.accepted(device_, std::move(control)));
    coming_.push_back(std::move(made));
  }
  std::erase_if(coming_, [](const auto& end) { return end->state() == Endpoint::State::kFailed; });
  for (auto at = coming_.begin(); at != coming_.end(); ++at) {
    if (!(*at)->belongs_to(core) || (*at)->state() == Endpoint::State::kConnecting) continue;
    std::unique_ptr<ControlledEndpoint> end = std::move(*at);
    coming_.erase(at);
    end->hand_out();
    return std::unique_ptr<Endpoint>(std::move(end));
  }
  return std::unique_ptr<Endpoint>();
}

}  // namespace onebit::transport
