// What a Handle of TCP says, and what the connecting side says of itself in each flow's handshake.
//
// Both are read as foreign bytes: every field is checked. Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/handshake.h"
#include "transport/transport.h"

namespace onebit::transport {

/// More than Context::connect promises, for a transport that has its control connections here.
inline constexpr std::size_t kMaxHello = 256;
inline constexpr std::uint32_t kMaxFlows = 64;

struct HandleContents {
  std::vector<SocketAddress> addresses;  ///< 1 to Device::kMaxAddresses
  bootstrap::Key key{};
};
/// The scope of a link-local IPv6 address is the listener's own: that of `source`, where they meet, replaces
/// it.
SocketAddress with_scope_of(const SocketAddress& source, const SocketAddress& address);
Handle encode_handle(const HandleContents& contents);
/// kInvalidArgument for bytes that are no handle of TCP, or of another version.
Result<HandleContents> decode_handle(const Handle& handle);

/// The payload of a flow's handshake.
struct FlowOpening {
  std::uint64_t endpoint_id = 0;  ///< random, the same for all flows of one endpoint
  std::uint16_t index = 0;
  std::uint16_t count = 0;
  std::vector<std::byte> hello;
};
std::vector<std::byte> encode_opening(const FlowOpening& opening);
Result<FlowOpening> decode_opening(std::span<const std::byte> bytes);

}  // namespace onebit::transport
