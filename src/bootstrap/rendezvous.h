// The rendezvous: all ranks of a job meet at rank 0 over TCP, prove the key, and exchange small things.
//
// A star of connections to rank 0, held while the object lives; rank 0 also listens until all have come.
// Every step has a deadline and an error that names the missing ranks and, where known, their addresses.
// Strangers, scanners, silent and half-open connections, other jobs and other versions neither join nor delay
// nor crash it. Threads: one at a time per object. A rendezvous in a forked child does nothing (it must not
// be used there).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/status.h"
#include "bootstrap/handshake.h"
#include "bootstrap/launcher.h"
#include "bootstrap/unique_id.h"

namespace onebit::bootstrap {

class Star;

class Rendezvous {
 public:
  /// By the launcher's MASTER_ADDR and MASTER_PORT. The key comes from ONEBIT_SECRET(_FILE); without one,
  /// from the job id, which is public: that keeps accidents out but not an attacker; logged once at INFO.
  /// (The world size is no part of it, so that a rank with another gets an error with both numbers.)
  static Result<std::unique_ptr<Rendezvous>> join(const Launch& launch, const Settings& settings);
  /// By a unique id. Rank 0 must be in the process that made it.
  static Result<std::unique_ptr<Rendezvous>> join(const UniqueId& id, int rank, int world_size,
                                                  const Settings& settings);
  ~Rendezvous();

  int rank() const;
  int world_size() const;
  /// 32 random bytes made by rank 0 for this rendezvous, the same on all ranks; who hears the rendezvous
  /// without knowing its key cannot tell them.
  const Key& job_key() const;
  /// The address of this rank's interface toward the master, for further listeners.
  const SocketAddress& own_address() const;
  /// "10.0.0.3 (node3, pid 4242)": where a rank runs, for messages. Known for all ranks on all ranks.
  const std::string& where(int rank) const;
  /// How many ranks run on this rank's machine (by the kernel's boot id), this one included.
  int local_ranks() const;

  /// Gathers `mine` of every rank, at most 64 KiB each, at every rank, in rank order. Collective. With one
  /// byte it is a barrier. It ends for all when the first rank's deadline passes, with the names of the ranks
  /// that are late (up to 2 s after the deadline where rank 0 itself is). After an error every further call
  /// gives the same error.
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine, Deadline deadline);

  /// Between two gathers: listens until `deadline` (one that has passed: a look) and returns ok, or the error
  /// of a rank that has failed or died meanwhile, which names it.
  Status watch(Deadline deadline);
  /// Ends the rendezvous for all ranks because of `own`, this rank's failure, and returns why it has ended:
  /// `own`, or, where that is a kRemoteError, what is heard within a second from the rank that failed first.
  Status fail(const Status& own);

 private:
  explicit Rendezvous(std::unique_ptr<Star> star);
  std::unique_ptr<Star> star_;
};

}  // namespace onebit::bootstrap
