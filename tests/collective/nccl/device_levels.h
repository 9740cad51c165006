// Two levels for the communicators of device_ranks.h.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/nccl/levels.h"
#include "device_ranks.h"

namespace onebit::nccl {

/// A number of each rank's node.
using Hosts = std::vector<std::uint64_t>;

/// Makes the levels of a rank's communicator. Collective.
inline void make_levels(NcclCommunicator& communicator, const Hosts& hosts) {
  const Levels::Making making = {&communicator, *place_of(hosts, communicator.options().codec.rank)};
  ASSERT_EQ(Levels::make({&making, 1}), kSuccess);
  carry_by_test_transport({&communicator});
}

}  // namespace onebit::nccl
