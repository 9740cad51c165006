// The Context of transports with control connections: listen, connect, and progress by polling.
//
// progress() goes round: poll the transport, look at the control connections when they have something to do;
// until something happened that a caller may wait for, or time is up. Before it sleeps it asks for events and
// polls once more. Threads: one at a time, except wake().
#pragma once

#include <memory>
#include <vector>

#include "transport/controlled_core.h"
#include "transport/transport.h"

namespace onebit::transport {

/// The context of a transport on these devices, of which the first says where control connections go.
Result<std::unique_ptr<Context>> make_controlled_context(std::shared_ptr<ControlledCore> core,
                                                         std::vector<Device> devices);

}  // namespace onebit::transport
