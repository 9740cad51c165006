#include "transport/controlled_wire.h"

#include <algorithm>

#include "transport/little_endian.h"

namespace onebit::transport {

Status bad_control() {
  return Status(Code::kDataError, "what it said on the control connection is malformed");
}

std::vector<std::byte> encode_ready() {
  return {static_cast<std::byte>(ControlKind::kReady)};
}

std::vector<std::byte> encode_goodbye(std::uint32_t messages) {
  std::vector<std::byte> bytes(5);
  bytes[0] = static_cast<std::byte>(ControlKind::kGoodbye);
  wire::store(bytes.data() + 1, messages);
  return bytes;
}

Result<std::uint32_t> decode_goodbye(std::span<const std::byte> bytes) {
  if (bytes.size() != 5) return bad_control();
  return wire::load<std::uint32_t>(bytes.data() + 1);
}

std::vector<std::byte> encode_hello(std::span<const std::byte> users, std::span<const std::byte> transports) {
  std::vector<std::byte> bytes(1 + users.size() + transports.size());
  bytes[0] = static_cast<std::byte>(users.size());
  std::copy(transports.begin(), transports.end(), std::copy(users.begin(), users.end(), bytes.begin() + 1));
  return bytes;
}

Result<SplitHello> split_hello(std::span<const std::byte> bytes) {
  const Status bad(Code::kDataError, "its hello is malformed");
  if (bytes.empty()) return bad;
  const auto users = static_cast<std::size_t>(bytes[0]);
  if (users > kMaxUserHello || bytes.size() < 1 + users) return bad;
  return SplitHello{bytes.subspan(1, users), bytes.subspan(1 + users)};
}

}  // namespace onebit::transport
