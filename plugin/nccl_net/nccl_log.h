// Our log lines in NCCL's log: NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE say what is seen and where.
//
// Any thread. The logger of the latest init counts; NCCL's library is never unloaded while it is in use.
#pragma once

#include "base/status.h"
#include "nccl_net/abi.h"

namespace onebit::nccl_net {

/// From now on all lines of this library go to `logger`; null: to stderr as those of libonebit.so.
void log_to(abi::Logger logger) noexcept;

/// The class that NCCL has for an error, which has been logged as a warning; kSuccess when ok.
abi::Result report(const Status& status) noexcept;

}  // namespace onebit::nccl_net
