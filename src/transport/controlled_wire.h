// What the two ends of a control connection say to each other, whatever transport it is for, little endian.
//
// The connecting end's hello holds the user's hello and what the transport has to say first; then come
// messages that begin with their kind. Read as foreign bytes: every length is checked. Pure functions; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace onebit::transport {

/// introduction: the transport's own. ready: the connecting end can receive. goodbye: last, at an orderly
/// end, with the number of messages that were sent.
enum class ControlKind : std::uint8_t { kIntroduction = 1, kReady = 2, kGoodbye = 3 };
inline constexpr std::size_t kMaxUserHello = 64;

/// What a malformed message of any kind is answered with.
Status bad_control();

std::vector<std::byte> encode_ready();
std::vector<std::byte> encode_goodbye(std::uint32_t messages);
/// The number of messages.
Result<std::uint32_t> decode_goodbye(std::span<const std::byte> bytes);

/// The hello of a control connection: the user's, up to kMaxUserHello bytes, and the transport's.
std::vector<std::byte> encode_hello(std::span<const std::byte> users, std::span<const std::byte> transports);
struct SplitHello {
  std::span<const std::byte> users;
  std::span<const std::byte> transports;
};
Result<SplitHello> split_hello(std::span<const std::byte> bytes);

}  // namespace onebit::transport
