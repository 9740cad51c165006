// The unique id: how an application tells its ranks where to meet and what to prove, as NCCL does.
//
// Rank 0's process makes it (which opens the rendezvous' listening socket), the application carries it to the
// others.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_socket.h"
#include "bootstrap/handshake.h"

namespace onebit::bootstrap {

/// 128 opaque bytes for the application; magic, version, key and up to 3 addresses inside, with a checksum.
struct UniqueId {
  std::array<std::byte, 128> bytes{};
};

struct UniqueIdContents {
  Key key{};
  std::vector<SocketAddress> addresses;
};

/// Opens a listening socket, kept in this process until rank 0's rendezvous takes it. If a secret is set in
/// `settings`, it is mixed into the key when ranks meet, and the id alone does not suffice.
Result<UniqueId> create_unique_id(const Settings& settings);
/// kInvalidArgument for bytes that are no unique id, or of another version.
Result<UniqueIdContents> read_unique_id(const UniqueId& id);
/// The listening sockets that create_unique_id of this process opened for `id`; empty if it was made
/// elsewhere or is taken.
std::vector<UniqueSocket> take_listeners(const UniqueId& id);

}  // namespace onebit::bootstrap
