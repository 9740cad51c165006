// How a context of verbs is made, and what a rank can say of it without the others. No state; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

/// The fabric that the first port which the settings choose is on (verbs_ports.h). An error says why there is
/// none.
Result<std::string> verbs_fabric(const Settings& settings);

/// The ports that the settings choose, never empty when ok. Their address is that of the control connections:
/// the interface that TCP would use toward `toward`.
Result<std::vector<Device>> verbs_devices(const Settings& settings, const SocketAddress& toward);

/// What a rank uses that has one connection to each peer: where the settings name ports, one device that
/// stripes over up to four of them, those of the first one's fabric; else as verbs_devices.
Result<std::vector<Device>> verbs_rank_devices(const Settings& settings, const SocketAddress& toward);

/// A context on these devices, with queues of these sizes.
Result<std::unique_ptr<Context>> make_verbs_context(const Settings& settings, std::vector<Device> devices,
                                                    const QueueSizes& sizes = {});

}  // namespace onebit::transport
