// Local ranks: starts this program once a rank, as a launcher would, and looks after the processes.
//
// Invariant: when run_local_ranks returns, or this process dies of whatever cause, none of its ranks is left
// running. One thread; it must be the only one of the process.
#pragma once

#include <string>
#include <vector>

namespace onebit::perf {

/// Runs `command` (argv of this program) as `ranks` processes that find each other over loopback, and waits
/// for them. When one fails, the others get a few seconds to notice it themselves, then they are ended; which
/// rank ended how is said on stderr. SIGINT, SIGTERM and SIGHUP end all. Returns the exit status of the first
/// rank to fail (128 + the signal for one that a signal ended, or 128 + the signal that ended us), else 0; 1
/// when the ranks cannot be started.
int run_local_ranks(const std::vector<std::string>& command, int ranks);

}  // namespace onebit::perf
