// Takes connections: those of TCP's listener, each the control connection of one.
//
// So strangers are dealt with there. The handle is TCP's with a mark, so that no transport takes another's
// for its own. Invariant: an end is handed out when it has connected; until then, whoever takes it must have
// progress made. Threads: those of the context.
#pragma once

#include <list>
#include <memory>

#include "transport/controlled_core.h"
#include "transport/controlled_endpoint.h"
#include "transport/transport.h"

namespace onebit::transport {

class ControlledListener final : public Listener {
 public:
  ControlledListener(std::shared_ptr<ControlledCore> core, std::size_t device,
                     std::unique_ptr<Listener> control);

  const Handle& handle() const override { return handle_; }
  Result<std::unique_ptr<Endpoint>> accept() override { return accept_into(*core_); }
  /// The endpoint belongs to `core`, of the same transport.
  Result<std::unique_ptr<Endpoint>> accept_into(ControlledCore& core);
  bool is_of(const ControlledCore& core) const noexcept { return core_->name() == core.name(); }

 private:
  std::shared_ptr<ControlledCore> core_;
  std::size_t device_;
  std::unique_ptr<Listener> control_;
  Handle handle_;
  std::list<std::unique_ptr<ControlledEndpoint>> coming_;
};

}  // namespace onebit::transport
