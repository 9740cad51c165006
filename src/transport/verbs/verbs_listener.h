// Takes connections for verbs: those of TCP's listener, each the control connection of one over verbs.
//
// So strangers are dealt with there. The handle is TCP's with a mark, so that neither transport takes the
// other's for its own. Threads: those of the context.
#pragma once

#include <memory>

#include "transport/transport.h"
#include "transport/verbs/verbs_core.h"

namespace onebit::transport {

/// A handle of TCP made one of verbs, and back.
Handle marked(Handle handle) noexcept;

class VerbsListener final : public Listener {
 public:
  VerbsListener(std::shared_ptr<VerbsCore> core, std::size_t port, std::unique_ptr<Listener> control)
      : core_(std::move(core)),
        port_(port),
        control_(std::move(control)),
        handle_(marked(control_->handle())) {}

  const Handle& handle() const override { return handle_; }
  Result<std::unique_ptr<Endpoint>> accept() override { return accept_into(core_); }
  /// The endpoint belongs to `core`.
  Result<std::unique_ptr<Endpoint>> accept_into(const std::shared_ptr<VerbsCore>& core);

 private:
  std::shared_ptr<VerbsCore> core_;
  std::size_t port_;
  std::unique_ptr<Listener> control_;
  Handle handle_;
};

}  // namespace onebit::transport
