// Compressed calls without levels, of all communicators that one thread drives at once.
#pragma once

#include <span>

#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {

/// As `run`, but for calls of communicators as they are.
Result run_flat(std::span<Request> requests);

}  // namespace onebit::nccl
