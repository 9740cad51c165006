// The bytes of a unique id, and the listening sockets of those made in this process.
//
//   magic (8) | version (2) | addresses (1) | 0 (1) | key (32) | 3 x address (20) | 0 (16) | checksum (8)
//   address: family 4 or 6 (1) | 0 (1) | port (2) | IPv4 or IPv6 address (16)
//
// Numbers are little endian, ports included; the checksum is XXH3 of all before it. It finds accidents: what
// keeps strangers out is the key. Threads: any.
#include "bootstrap/unique_id.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/fork.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/wire.h"

namespace onebit::bootstrap {
namespace {

constexpr std::uint64_t kMagic = 0x0A44497469626531;  // "1ebitID\n"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kMaxAddresses = 3;
constexpr std::size_t kChecksumAt = 120;

void put_address(Writer& writer, const SocketAddress& address) {
  std::array<std::byte, 16> raw{};
  const bool v4 = address.family() == AF_INET;
  if (v4) {
    std::memcpy(raw.data(), &reinterpret_cast<const sockaddr_in*>(address.data())->sin_addr, 4);
  } else {
    std::memcpy(raw.data(), &reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr, 16);
  }
  writer.u8(v4 ? 4 : 6);
  writer.u8(0);
  writer.u16(address.port());
  writer.bytes(raw);
}

/// Invalid for another family.
SocketAddress get_address(Reader& reader) {
  const std::uint8_t family = reader.u8();
  reader.u8();
  const std::uint16_t port = reader.u16();
  const auto raw = reader.bytes(16);
  SocketAddress address;
  if (family == 4 && raw.size() == 16) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, raw.data(), 4);
    address = SocketAddress(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  } else if (family == 6 && raw.size() == 16) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    std::memcpy(&v6.sin6_addr, raw.data(), 16);
    address = SocketAddress(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  }
  address.set_port(port);
  return address;
}

/// The listeners that wait for their rendezvous. Never destroyed: other threads may still use it at exit.
struct Registry {
  struct Entry {
    pid_t pid;
    std::vector<UniqueSocket> listeners;
  };
  ForkMutex mutex{LockLevel::kTable};
  std::map<std::array<std::byte, 128>, Entry> entries;

  static Registry& instance() {
    static Registry* const registry = new Registry;
    return *registry;
  }
};
/// Made when the library is loaded, see ForkMutex.
[[maybe_unused]] const Registry& g_made_at_load = Registry::instance();

}  // namespace

Result<UniqueId> create_unique_id(const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
  ONEBIT_ASSIGN_OR_RETURN(
      std::vector<Interface> chosen,
      choose_interfaces(all, settings.socket_ifname, settings.socket_family, SocketAddress()));
  std::vector<UniqueSocket> listeners;
  std::vector<SocketAddress> addresses;
  Status last;
  for (const Interface& interface : chosen) {
    if (addresses.size() == kMaxAddresses) break;
    auto listener = listen_on(interface.address, settings.port_range);
    if (!listener.ok()) {
      last = listener.status();
      continue;
    }
    ONEBIT_ASSIGN_OR_RETURN(const SocketAddress address, local_address(listener->get()));
    addresses.push_back(address);
    listeners.push_back(std::move(*listener));
  }
  if (listeners.empty()) return last;

  const Key key = random_key();
  Writer writer;
  writer.u64(kMagic);
  writer.u16(kVersion);
  writer.u8(static_cast<std::uint8_t>(addresses.size()));
  writer.u8(0);
  writer.bytes(std::as_bytes(std::span(key)));
  for (const SocketAddress& address : addresses) put_address(writer, address);
  writer.resize(kChecksumAt);
  writer.u64(XXH3_64bits(writer.data().data(), kChecksumAt));
  UniqueId id;
  std::copy(writer.data().begin(), writer.data().end(), id.bytes.begin());

  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.entries[id.bytes] = {::getpid(), std::move(listeners)};
  return id;
}

Result<UniqueIdContents> read_unique_id(const UniqueId& id) {
  Reader reader(id.bytes);
  if (reader.u64() != kMagic) {
    return Status(
        Code::kInvalidArgument,
        "these 128 bytes are no unique id of onebit: hand the bytes that rank 0 made to every rank");
  }
  if (const std::uint16_t version = reader.u16(); version != kVersion) {
    return Status::error(
        Code::kInvalidArgument,
        "the unique id is of version {}, this library reads version {}: use one release of onebit "
        "on all ranks",
        version, kVersion);
  }
  Reader tail(std::span(id.bytes).subspan(kChecksumAt));
  if (tail.u64() != XXH3_64bits(id.bytes.data(), kChecksumAt)) {
    return Status(Code::kInvalidArgument, "the unique id is damaged: its checksum does not fit");
  }
  UniqueIdContents contents;
  const std::size_t count = reader.u8();
  reader.u8();
  const auto key = reader.bytes(contents.key.size());
  std::memcpy(contents.key.data(), key.data(), key.size());
  for (std::size_t i = 0; i < std::min(count, kMaxAddresses); ++i) {
    const SocketAddress address = get_address(reader);
    if (address.valid()) contents.addresses.push_back(address);
  }
  if (contents.addresses.empty()) {
    return Status(Code::kInvalidArgument, "the unique id is damaged: it holds no address");
  }
  return contents;
}

std::vector<UniqueSocket> take_listeners(const UniqueId& id) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  const auto entry = registry.entries.find(id.bytes);
  if (entry == registry.entries.end() || entry->second.pid != ::getpid()) return {};
  std::vector<UniqueSocket> listeners = std::move(entry->second.listeners);
  registry.entries.erase(entry);
  return listeners;
}

}  // namespace onebit::bootstrap
