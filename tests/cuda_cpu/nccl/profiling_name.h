// NCCL exports each function a second time as pncclX, for libraries that stand in front of ncclX.
#pragma once

/// In the file that defines the function.
#define ONEBIT_PROFILING_NAME(function) \
  extern "C" decltype(function) p##function __attribute__((alias(#function)))
