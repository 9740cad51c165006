// The connections of a rendezvous: a star with rank 0 in the middle.
//
// Protocol after the handshake: rank 0 sends the roll when all have come. In an all_gather every rank sends
// its part and the time it will wait (rank 0 fails for all when the first rank's time is up, so that each
// gets the same error with the names of those that are late), rank 0 sends all parts. Any way and at any
// time, kFailure ends it. Invariant: after an error the object stays broken, and every rank that can be told
// has been told. Threads: one at a time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/unique_socket.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/joining.h"
#include "bootstrap/member.h"
#include "bootstrap/stream.h"

namespace onebit::bootstrap {

class Star {
 public:
  using Bytes = std::vector<std::byte>;

  /// A job of one rank: no network.
  static Result<std::unique_ptr<Star>> alone(const Settings& settings);
  /// Rank 0 of several. `meeting` names the place for messages.
  static Result<std::unique_ptr<Star>> as_master(std::vector<UniqueSocket> listeners, const Key& key,
                                                 const Member& self, const std::string& meeting,
                                                 const Settings& settings, Deadline deadline);
  /// Another rank.
  static Result<std::unique_ptr<Star>> as_member(const Meeting& meeting, const Key& key, const Member& self,
                                                 const Settings& settings, Deadline deadline);
  Star() = default;
  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;
  ~Star();

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const Key& job_key() const { return job_key_; }
  const SocketAddress& own_address() const { return own_; }
  const std::vector<std::string>& where() const { return where_; }
  int local_ranks() const { return local_ranks_; }
  Result<std::vector<Bytes>> all_gather(std::span<const std::byte> mine, Deadline deadline);
  Status watch(Deadline deadline);
  Status fail(const Status& own);

 private:
  void take_roll(const Roll& roll, const Key& key, const Member& self);
  Status settle_own_address(const Settings& settings, bool several_machines);
  Result<Frame> frame_from_master(FrameType type, Deadline deadline);
  Result<std::vector<Bytes>> gather_as_master(std::span<const std::byte> mine, Deadline deadline);
  Result<std::vector<Bytes>> gather_as_member(std::span<const std::byte> mine, Deadline deadline);
  Status collect(std::vector<Bytes>& parts, Deadline& deadline);
  Result<std::optional<Frame>> frame_from_member(std::size_t rank);
  Status hear_members(Deadline deadline);
  Status take_part(std::size_t rank, const Frame& frame, Bytes& part, Deadline& deadline) const;
  Status distribute(Deadline deadline);
  void queue_for_all(FrameType type, Bytes message);
  std::string name(std::size_t rank) const;

  int rank_ = 0;
  int world_size_ = 1;
  pid_t pid_ = ::getpid();
  Key job_key_{};
  SocketAddress own_;
  std::vector<std::string> where_;
  int local_ranks_ = 1;
  std::vector<Joined> links_;  // rank 0: one for each rank, the first empty; others: the one to rank 0
  std::vector<std::optional<Frame>> early_;  // rank 0: parts of the next all_gather, heard in watch
  Status broken_;
};

}  // namespace onebit::bootstrap
