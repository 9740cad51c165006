// What two ends of the verbs transport say to each other, little endian.
//
// Over the queue pair for messages, in a receive slot, a header; an eager message's is the first 28 bytes of
// it, with the message's own bytes behind:
//   0 magic u16 | 2 kind u8 | 3 zero u8 | 4 slots freed u32 | 8 segments freed u32 | 12 sequence u32 | 16 tag
//   u64 | 24 check u32 | 28 rendezvous u32 | 32 message bytes u64 | 40 address u64 | 48 keys u32,
//   one for each port
// eager: message number `sequence` of this direction. announce: the same without its bytes, which will be
//   written into advertised memory as `rendezvous`. advertise: where they are to be written. credits: nothing
//   but the two counts, which every header has: how many slots and segments this end has freed since the
//   beginning, modulo 2^32.
//
// Over the control connection (controlled_wire.h): the connecting end introduces itself in the hello, the
// accepting one when it can receive; the connecting one answers `ready` when it can, too. Pure functions; any
// thread.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace onebit::transport {

enum class MessageKind : std::uint8_t { kEager = 1, kAnnounce = 2, kAdvertise = 3, kCredits = 4 };

inline constexpr std::size_t kMaxPorts = 4;  ///< of a connection
inline constexpr std::size_t kMessageHeaderBytes = 48 + 4 * kMaxPorts;
/// Small messages are what latency is about, and each byte counts.
inline constexpr std::size_t kEagerHeaderBytes = 28;

struct MessageHeader {
  MessageKind kind = MessageKind::kCredits;
  std::uint32_t sequence = 0;
  std::uint64_t tag = 0;
  std::uint32_t check = 0;
  std::uint32_t rendezvous = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  std::array<std::uint32_t, kMaxPorts> keys{};  ///< of the memory at `address`, with each of the ports
  std::uint32_t slots_freed = 0;
  std::uint32_t segments_freed = 0;
};
/// Returns the length: kEagerHeaderBytes or kMessageHeaderBytes.
std::size_t encode_message(const MessageHeader& header, std::byte* to) noexcept;
/// Null when the header is sound in itself, else what is wrong with it.
const char* decode_message(const std::byte* from, std::size_t bytes, MessageHeader& header) noexcept;

/// How much each end of a connection has room for. Every send is within what the other end has said, so no
/// queue can overrun.
struct QueueSizes {
  std::uint32_t slots = 32;               ///< messages that may come before they are matched
  std::uint32_t slot_bytes = 8 << 10;     ///< of a message with its header
  std::uint32_t rendezvous = 8;           ///< large messages under way in one direction
  std::uint32_t segments = 32;            ///< writes under way into this end
  std::uint32_t segment_bytes = 1 << 20;  ///< of a write, at most; the writer's own matter

  static constexpr std::uint32_t kMost = 4096;
};
inline constexpr std::uint32_t kMaxPairs = 16;  ///< for data, of a connection

/// How a port is reached.
struct PortPlace {
  ibv_gid gid{};
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;  ///< ibv_mtu
  bool ethernet = false;
};

/// What a peer must know to reach this end's queue pairs.
struct Introduction {
  std::uint32_t first_packet = 0;
  QueueSizes sizes;
  bool announced_only = false;       ///< its memory may be a GPU's: no message with bytes goes through slots
  std::vector<PortPlace> ports;      ///< 1 to kMaxPorts
  std::vector<std::uint32_t> pairs;  ///< numbers; the first is for messages, the others for data

  /// The port that a data pair is on: they are dealt out in turn. The pair for messages is on the first.
  static std::size_t port_of(std::size_t data_pair, std::size_t ports) noexcept { return data_pair % ports; }
};

inline constexpr std::size_t kMaxControlBytes = 192;

std::vector<std::byte> encode_introduction(const Introduction& introduction);
/// kDataError for bytes that are none.
Result<Introduction> decode_introduction(std::span<const std::byte> bytes);

}  // namespace onebit::transport
