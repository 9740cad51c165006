// Where rank 0 listens when the launcher gives the master's name and port. Threads: any, one per call.
#pragma once

#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_socket.h"
#include "bootstrap/handshake.h"
#include "bootstrap/launcher.h"
#include "bootstrap/member.h"

namespace onebit::bootstrap {

/// The addresses on which rank 0 of `launch` has to be reachable.
///
/// An address of this machine, or localhost: just that. Any other name or address: all addresses of the
/// families it resolves to, since it may mean something else here than elsewhere (Debian resolves a machine's
/// own name to 127.0.1.1; behind NAT the master's address is on another machine).
Result<std::vector<SocketAddress>> listen_addresses(const Launch& launch, const Settings& settings);

/// The listening sockets. A port that is in use is tried for a few seconds more; if it is another rank 0 of
/// this job that uses it, both fail with an error that names the two.
Result<std::vector<UniqueSocket>> open_listeners(const Launch& launch, const Settings& settings,
                                                 const Key& key, const Member& self, Deadline deadline);

}  // namespace onebit::bootstrap
