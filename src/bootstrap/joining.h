// The other ranks' side of set-up: reaching rank 0 and being taken in by it.
//
// What may pass by itself (nobody listens yet, no route yet, a name that does not resolve yet, a stranger on
// the port) is tried again, with growing pauses, until the deadline; a refusal by the job's own rank 0 is
// final. Threads: any, one per call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_socket.h"
#include "bootstrap/handshake.h"
#include "bootstrap/member.h"

namespace onebit::bootstrap {

/// Where rank 0 is to be found.
struct Meeting {
  std::string name;  ///< for messages: "node1:29500"
  std::string hint;  ///< for messages: what to check when it cannot be reached
  std::function<Result<std::vector<SocketAddress>>()> addresses;
};

struct Connected {
  UniqueSocket fd;
  SocketAddress local;   ///< our end, port 0
  SocketAddress master;  ///< rank 0's end
};

/// One attempt at one address. `final` is set when another is of no use.
Result<Connected> try_join(const SocketAddress& master, const SocketAddress& source, const Key& key,
                           const Member& self, std::chrono::milliseconds silence, Deadline deadline,
                           bool& final);

/// Attempts until the deadline. With ONEBIT_SOCKET_IFNAME, from the interface that it names.
Result<Connected> join_master(const Meeting& meeting, const Key& key, const Member& self,
                              const Settings& settings, Deadline deadline);

}  // namespace onebit::bootstrap
