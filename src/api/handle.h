// What an onebitComm_t points to.
#pragma once

#include <onebit/onebit.h>

#include <memory>

#include "collective/communicator.h"

struct onebitComm {
  std::unique_ptr<onebit::collective::Communicator> communicator;
};
