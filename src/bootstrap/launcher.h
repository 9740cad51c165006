// Who this process is in its job, read from the launcher's environment. Pure function of the environment; any
// thread (as getenv: not beside a setenv).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/settings.h"
#include "base/status.h"

namespace onebit::bootstrap {

constexpr int kMaxWorldSize = 65536;

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_world_size = 0;  ///< ranks on this machine; 0 = unknown
  std::string master_host;   ///< empty only when world_size is 1
  std::uint16_t master_port = 0;
  std::string job_id;    ///< ONEBIT_JOB_ID, else the launcher's; may be empty
  std::string launcher;  ///< which variables decided: "torchrun", "Open MPI", "PMI", "Slurm"
};

/// Reads RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_* or SLURM_*: the first of these, in this order, of which
/// rank and size are both set. Single ones of an earlier pair may be set beside it (scripts export WORLD_SIZE
/// and leave the rank to Slurm), but must agree. PMI_* that say the same as SLURM_* are srun's: Slurm.
///
/// The master is MASTER_ADDR and MASTER_PORT, with these additions:
/// * Under torchrun (TORCHELASTIC_RUN_ID or TORCHELASTIC_USE_AGENT_STORE is set) MASTER_PORT belongs to
///   PyTorch's own store, in the agent or in rank 0, so that we meet at a port made from it, above 61000.
///   ONEBIT_MASTER_PORT wins over both.
/// * Slurm without MASTER_ADDR: the first host of SLURM_STEP_NODELIST, else of SLURM_JOB_NODELIST. Without
///   MASTER_PORT: a port above 61000 made from the job id.
/// * Open MPI and PMI without MASTER_ADDR, when all ranks are on this machine: 127.0.0.1, and without
///   MASTER_PORT a port made from the job id.
///
/// An empty variable counts as unset. Errors (kInvalidUsage) name the variable and its value: what is
/// missing, malformed or out of range, or which two contradict.
Result<Launch> detect_launch(const Settings& settings);

/// The first host of a Slurm list such as "node[003-007,12],login1": node003. Empty for malformed lists.
std::string first_host(std::string_view list);

}  // namespace onebit::bootstrap
