// The network devices of the TCP transport: the chosen interfaces, with their speed and place. No state.
#pragma once

#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "transport/transport.h"

namespace onebit::transport {

/// Never empty when ok.
Result<std::vector<Device>> tcp_devices(const Settings& settings, const SocketAddress& toward);

}  // namespace onebit::transport
