// Rank 0's side of set-up: takes in the other ranks, and nobody else.
//
// One poll loop serves every connection. Those that have not proved the key are bounded in number (the oldest
// goes first) and in time (a few seconds each), so that no flood of them exhausts or delays anything; a
// shortage of file descriptors is met by dropping them. Threads: one.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_socket.h"
#include "bootstrap/handshake.h"
#include "bootstrap/member.h"
#include "bootstrap/stream.h"

namespace onebit::bootstrap {

/// A rank that has joined.
struct Joined {
  FrameStream stream;
  Member member;
  std::string where;
  SocketAddress local;  ///< our end of its connection, port 0
};

/// How long a connection may take to prove the key.
constexpr std::chrono::seconds kHandshakeTime{5};
/// The most that a frame from a rank to rank 0 may hold.
constexpr std::size_t kMaxDataFrame = std::size_t{64} * 1024 + 4;

/// Waits for ranks 1 to W-1 of `self`'s job; entry 0 of the result is empty. An error has been told to every
/// rank that came. `meeting` names the place in messages, as in "node1:29500".
Result<std::vector<Joined>> gather_ranks(std::vector<UniqueSocket> listeners, const Key& key,
                                         const Member& self, std::string_view self_where,
                                         std::string_view meeting, Deadline deadline);

/// Tells `failure` to every stream, as far as that goes within a second, and returns it.
Status tell_all(std::vector<Joined>& ranks, const Status& failure);

}  // namespace onebit::bootstrap
