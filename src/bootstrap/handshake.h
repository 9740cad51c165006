// The keyed opening of a connection: both ends prove that they know the key before anything else is believed.
//
// One non-blocking state machine an end, over a connected TCP socket that the caller owns. After success the
// socket is at a clean message boundary: nothing of what follows has been read. Messages have bounded sizes
// and carry magic, protocol version and purpose; proofs are keyed BLAKE2b (libsodium crypto_generichash) over
// both ends' nonces, roles, purpose and payloads. What it gives: strangers, scanners and ranks of another job
// cannot join. It does not encrypt what follows. Threads: one at a time per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace onebit::bootstrap {

using Key = std::array<std::uint8_t, 32>;

/// 32 random bytes (libsodium).
Key random_key();
/// A key from text of any length; the same text and context give the same key.
Key derive_key(std::string_view secret, std::string_view context);

enum class Purpose : std::uint8_t { kRendezvous = 1, kTransport = 2 };
enum class Role : std::uint8_t { kClient, kServer };

constexpr std::size_t kMaxHandshakePayload = 512;
/// Raised with every change of what is said over a connection, in the handshake or after it.
constexpr std::uint16_t kHandshakeVersion = 1;

class Handshake {
 public:
  /// `payload` (up to kMaxHandshakePayload bytes) is the client's, handed to the server, authenticated. The
  /// server gives its own by `answer`, when it has seen the client's.
  Handshake(int fd, Role role, const Key& key, Purpose purpose, std::span<const std::byte> payload = {});
  ~Handshake();
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;

  enum class Step {
    kWantRead,    ///< call again when the socket is readable
    kWantWrite,   ///< call again when it is writable
    kWantAnswer,  ///< server only: the client is authentic; call `answer` or `refuse`, then go on
    kDone,
  };
  /// Goes as far as it can without blocking. Errors: kRemoteError when the other end closed or refused (with
  /// its reason), kInvalidUsage for another protocol version or another key, kDataError for anything that is
  /// not our protocol.
  Result<Step> advance();
  void answer(std::span<const std::byte> payload);
  /// Sends `reason` (its first 512 bytes) to the client, which gets it as its error; `advance` then ends in
  /// an error here too (kInvalidUsage with the reason).
  void refuse(std::string_view reason);

  /// Client: the error is the refusal of an authentic server, so that trying again is of no use.
  bool refused() const;

  /// What the other end sent. Valid from kWantAnswer (server) or kDone (client).
  std::span<const std::byte> peer_payload() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onebit::bootstrap
