#include "transport/tcp/tcp_handle.h"

#include <arpa/inet.h>

#include <cstring>

#include "transport/tcp/tcp_wire.h"

namespace onebit::transport {
namespace {

constexpr std::uint32_t kHandleMagic = 0x32504354;  // "TCP2"
constexpr std::size_t kHandleFixed = 8 + sizeof(bootstrap::Key);
constexpr std::size_t kHandleAddress = 20;
static_assert(kHandleFixed + Device::kMaxAddresses * kHandleAddress <= sizeof(Handle));
constexpr std::size_t kOpeningFixed = 14;

}  // namespace

// magic u32 | addresses u32 | key 32 | for each address: family u16 (4 or 6), port u16, address 16
Handle encode_handle(const HandleContents& contents) {
  Handle handle;
  std::byte* to = handle.bytes.data();
  wire::store(to, kHandleMagic);
  wire::store(to + 4, static_cast<std::uint32_t>(contents.addresses.size()));
  std::memcpy(to + 8, contents.key.data(), contents.key.size());
  to += kHandleFixed;
  for (const SocketAddress& address : contents.addresses) {
    const bool v4 = address.family() == AF_INET;
    wire::store<std::uint16_t>(to, v4 ? 4 : 6);
    wire::store(to + 2, address.port());
    if (v4) {
      std::memcpy(to + 4, &reinterpret_cast<const sockaddr_in*>(address.data())->sin_addr, 4);
    } else {
      std::memcpy(to + 4, &reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr, 16);
    }
    to += kHandleAddress;
  }
  return handle;
}

Result<HandleContents> decode_handle(const Handle& handle) {
  const Status bad(Code::kInvalidArgument,
                   "the handle to connect to was not made by the TCP transport of this version of onebit");
  const std::byte* from = handle.bytes.data();
  const auto count = wire::load<std::uint32_t>(from + 4);
  if (wire::load<std::uint32_t>(from) != kHandleMagic || count == 0 || count > Device::kMaxAddresses) {
    return bad;
  }
  HandleContents contents;
  std::memcpy(contents.key.data(), from + 8, contents.key.size());
  from += kHandleFixed;
  for (std::uint32_t i = 0; i < count; ++i, from += kHandleAddress) {
    const auto family = wire::load<std::uint16_t>(from);
    const auto port = wire::load<std::uint16_t>(from + 2);
    if ((family != 4 && family != 6) || port == 0) return bad;
    if (family == 4) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      std::memcpy(&address.sin_addr, from + 4, 4);
      contents.addresses.emplace_back(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } else {
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(port);
      std::memcpy(&address.sin6_addr, from + 4, 16);
      contents.addresses.emplace_back(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
  }
  return contents;
}

SocketAddress with_scope_of(const SocketAddress& source, const SocketAddress& address) {
  if (address.family() != AF_INET6 || source.family() != AF_INET6 || !address.is_link_local()) return address;
  sockaddr_in6 scoped = *reinterpret_cast<const sockaddr_in6*>(address.data());
  scoped.sin6_scope_id = reinterpret_cast<const sockaddr_in6*>(source.data())->sin6_scope_id;
  return SocketAddress(reinterpret_cast<const sockaddr*>(&scoped), sizeof scoped);
}

std::vector<std::byte> encode_opening(const FlowOpening& opening) {
  std::vector<std::byte> bytes(kOpeningFixed + opening.hello.size());
  wire::store(bytes.data(), opening.endpoint_id);
  wire::store(bytes.data() + 8, opening.index);
  wire::store(bytes.data() + 10, opening.count);
  wire::store(bytes.data() + 12, static_cast<std::uint16_t>(opening.hello.size()));
  if (!opening.hello.empty()) {
    std::memcpy(bytes.data() + kOpeningFixed, opening.hello.data(), opening.hello.size());
  }
  return bytes;
}

Result<FlowOpening> decode_opening(std::span<const std::byte> bytes) {
  const Status bad(Code::kDataError, "the opening of a flow is malformed");
  if (bytes.size() < kOpeningFixed) return bad;
  FlowOpening opening;
  opening.endpoint_id = wire::load<std::uint64_t>(bytes.data());
  opening.index = wire::load<std::uint16_t>(bytes.data() + 8);
  opening.count = wire::load<std::uint16_t>(bytes.data() + 10);
  const auto hello = wire::load<std::uint16_t>(bytes.data() + 12);
  if (hello > kMaxHello || bytes.size() != kOpeningFixed + hello) return bad;
  if (opening.count == 0 || opening.count > kMaxFlows || opening.index >= opening.count) return bad;
  opening.hello.assign(bytes.begin() + kOpeningFixed, bytes.end());
  return opening;
}

}  // namespace onebit::transport
