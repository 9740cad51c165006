// A tensor in a pass: its numbers, its arrays, and what the pass has found out.
//
// Plain data, the same for the host's runner and a device's; pointers are to memory of whoever runs the pass.
// Value types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "optimizer/passes.h"

namespace onebit::optimizer {

struct JobResult {
  double first = 0;
  double second = 0;
  float largest = 0;
};

struct Job {
  std::size_t count = 0;
  Scalars scalars;
  Arrays arrays;                   ///< whole arrays of the tensor; g is set by the runner
  const void* gradient = nullptr;  ///< null: zeros
  DataType gradient_type = DataType::kFloat32;
  const std::uint8_t* gradient_mask = nullptr;  ///< null, or the gradient counts as 0 where it is 0
  void* narrow_parameters = nullptr;  ///< null, or gets w rounded to narrow_type after a pass that changes w
  DataType narrow_type = DataType::kFloat32;
  bool masked = false;  ///< the masked variants of passes
  JobResult result;
};

}  // namespace onebit::optimizer
