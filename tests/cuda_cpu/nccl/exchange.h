// Moves bytes between ranks through the rings: all transfers at once, those of one pair and direction in
// their order.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda_cpu/nccl/communicator.h"

namespace onebit::nccl_stand_in {

struct Transfer {
  bool sends;
  int peer;
  char* data;  ///< not written when it sends
  std::size_t bytes;
  std::size_t done = 0;
};

/// False when the communicator broke, which it does when a peer is gone or nothing moves for `patience`.
bool exchange(Communicator& communicator, std::vector<Transfer>& transfers);

}  // namespace onebit::nccl_stand_in
