// What a transport over a device has to say for itself, and what its context, listeners and endpoints share
// beside what those of all transports do: the control connections' context.
//
// Such a transport (verbs, UCX) makes a connection of TCP first, its control connection, proven by the
// handshake; controlled_context.h, controlled_listener.h and controlled_endpoint.h are the common part of
// these transports. Threads: one at a time, except Poller::wake. In a forked child everything may be
// destroyed, and nothing else; the parent goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/settings.h"
#include "base/unique_socket.h"
#include "transport/common_endpoint.h"
#include "transport/transport.h"

namespace onebit::transport {

class ControlledEndpoint;

class ControlledCore : public CommonCore, public std::enable_shared_from_this<ControlledCore> {
 public:
  using CommonCore::CommonCore;
  ControlledCore(const ControlledCore&) = delete;
  ControlledCore& operator=(const ControlledCore&) = delete;
  virtual ~ControlledCore() = default;

  virtual std::string_view name() const noexcept = 0;
  /// Makes handles of TCP handles of this transport, by XOR with their first byte, which is text.
  virtual std::byte mark() const noexcept = 0;
  /// Of its index, before anything is made on the device.
  virtual Status check_device(std::size_t device) = 0;
  /// The connecting end; `to`: a listener of the control context.
  virtual Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& to,
                                                    std::span<const std::byte> hello) = 0;
  /// The accepting end; `over`: its control connection.
  virtual Result<std::unique_ptr<ControlledEndpoint>> accepted(std::size_t device,
                                                               std::unique_ptr<Endpoint> over) = 0;
  virtual Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) = 0;
  /// As Context::register_dma_buf.
  virtual Result<std::unique_ptr<Memory>> register_dma_buf(void* /*data*/, std::size_t bytes,
                                                           const DmaBuf& /*buffer*/) {
    return refuse_dma_buf(name(), bytes);
  }
  /// Moves what can be moved, some at a time; true when there was any.
  virtual bool poll() = 0;
  /// Has the next event end a wait of `poller`; what came before it is found by poll() only.
  virtual Status arm() = 0;

  /// A handle of TCP made one of this transport, and back.
  Handle marked(Handle handle) const noexcept {
    handle.bytes[0] ^= mark();
    return handle;
  }
  /// True in a child that was forked since.
  bool is_inherited() const noexcept { return generation_ != UniqueSocket::process_generation(); }

  std::unique_ptr<Context> control;  ///< of TCP
  bool control_due = true;           ///< it may have something to do

 private:
  const std::uint32_t generation_ = UniqueSocket::process_generation();
};

}  // namespace onebit::transport
