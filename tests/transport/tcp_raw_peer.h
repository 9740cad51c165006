// Raw sockets against the TCP transport: strangers, and a peer that knows the key but not the manners.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/socket.h"
#include "bootstrap/handshake.h"
#include "transport/tcp/tcp_handle.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

namespace onebit::transport::test {

/// A plain connection to the listener of `handle`, waited for.
UniqueSocket raw_connect(const Handle& handle);
/// Sends as much as goes at once.
void raw_send(int fd, std::span<const std::byte> bytes);
void raw_send(int fd, const std::string& text);
/// Closes with RST.
void raw_reset(UniqueSocket& fd);
/// Whether the other end has closed; waits up to 10 s while it moves `context`.
bool raw_closed(int fd, Context& context);

/// An endpoint of `context` whose peer is a raw, authenticated socket for each flow.
struct RawPeer {
  RawPeer(Context& context, std::size_t flows);
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<UniqueSocket> sockets;
};

/// The header's bytes, then the payload's.
std::vector<std::byte> segment(const SegmentHeader& header, std::span<const std::byte> payload = {});

}  // namespace onebit::transport::test
