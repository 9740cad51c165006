// How a context of UCX is made. No state; any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_wire.h"

namespace onebit::transport {

/// One device, for UCX chooses the networks itself (UCX_TLS, UCX_NET_DEVICES). Its address is that of the
/// control connections: the interface that TCP would use toward `toward`.
Result<std::vector<Device>> ucx_devices(const Settings& settings, const SocketAddress& toward);

/// A context on this device, with a window of this size.
Result<std::unique_ptr<Context>> make_ucx_context(const Settings& settings, std::vector<Device> devices,
                                                  const UcxWindow& window = {});

}  // namespace onebit::transport
