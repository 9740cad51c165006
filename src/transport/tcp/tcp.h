// How a context of TCP is made. No state; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "transport/transport.h"

namespace onebit::transport {

/// The interfaces that the settings choose for TCP, never empty when ok; the one toward `toward` first (may
/// be invalid: none).
Result<std::vector<Device>> tcp_devices(const Settings& settings, const SocketAddress& toward);

/// A TCP context on these devices. Connections to each peer: what ONEBIT_TCP_FLOWS says, or `flows` where it
/// says 0 (automatic), or 2 where that is 0, too.
Result<std::unique_ptr<Context>> make_tcp_context(const Settings& settings, std::vector<Device> devices,
                                                  std::uint32_t flows = 0);
/// The same on tcp_devices(settings, toward).
Result<std::unique_ptr<Context>> make_tcp_context(const Settings& settings, const SocketAddress& toward,
                                                  std::uint32_t flows = 0);

}  // namespace onebit::transport
