// Where passes run: an interface, so that another device can stand behind it, and the host's.
//
// A pass runs over all tensors at once; each has its numbers, its arrays and, after the pass, its results.
// Invariant: results do not depend on the number of threads: a tensor's partial sums are per block, and added
// in fp64 in the order of blocks. Threads: one caller at a time; the host's runner uses the exchange's
// threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "optimizer/exchange.h"
#include "optimizer/passes.h"

namespace onebit::optimizer {

/// A tensor in a pass.
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

  struct {
    double first = 0;
    double second = 0;
    float largest = 0;
  } result;
};

class Runner {
 public:
  virtual ~Runner() = default;
  /// Runs `pass` over all jobs and leaves each one's result.
  virtual void run(Pass pass, std::span<Job> jobs) = 0;
};

/// `counts`: the elements of each job that it will be given.
std::unique_ptr<Runner> make_host_runner(Exchange& exchange, std::span<const std::size_t> counts);

}  // namespace onebit::optimizer
