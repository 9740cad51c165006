// Who this process is in its job, read from the launcher's environment. Pure function of the environment; any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"
#include "base/status.h"

namespace onebit::bootstrap {

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_world_size = 0;  ///< ranks on this machine; 0 = unknown
  std::string master_host;   ///< empty only when world_size is 1
  std::uint16_t master_port = 0;
  std::string job_id;    ///< may be empty
  std::string launcher;  ///< which variables decided: "torchrun", "Open MPI", "PMI", "Slurm"
};

/// RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_* or SLURM_*, in this order, with MASTER_ADDR/MASTER_PORT. Slurm
/// without MASTER_ADDR takes the first host of SLURM_JOB_NODELIST and a port made from the job id. Errors
/// name what is missing, what is out of range, or which two contradict.
Result<Launch> detect_launch(const Settings& settings);

}  // namespace onebit::bootstrap
