// Takes connections: those of TCP's listener, each the control connection of one.
//
// So strangers are dealt with there. The handle is TCP's with a mark, so that no transport takes another's
// for its own. Threads: those of the context.
#pragma once

#include <memory>
#include <utility>

#include "transport/controlled_core.h"
#include "transport/transport.h"

namespace onebit::transport {

class ControlledListener final : public Listener {
 public:
  ControlledListener(std::shared_ptr<ControlledCore> core, std::size_t device,
                     std::unique_ptr<Listener> control)
      : core_(std::move(core)),
        device_(device),
        control_(std::move(control)),
        handle_(core_->marked(control_->handle())) {}

  const Handle& handle() const override { return handle_; }
  Result<std::unique_ptr<Endpoint>> accept() override { return accept_into(*core_); }
  /// The endpoint belongs to `core`, of the same transport.
  Result<std::unique_ptr<Endpoint>> accept_into(ControlledCore& core) {
    ONEBIT_ASSIGN_OR_RETURN(auto control, core.control->accept(*control_));
    if (control == nullptr) return std::unique_ptr<Endpoint>();
    return core.accepted(device_, std::move(control));
  }
  bool is_of(const ControlledCore& core) const noexcept { return core_->name() == core.name(); }

 private:
  std::shared_ptr<ControlledCore> core_;
  std::size_t device_;
  std::unique_ptr<Listener> control_;
  Handle handle_;
};

}  // namespace onebit::transport
