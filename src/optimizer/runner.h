// Where passes run: an interface, so that another device can stand behind it, and the host's.
//
// A pass runs over all tensors at once; each has its numbers, its arrays and, after the pass, its results.
// Invariant: results do not depend on the number of threads, nor on the device: a tensor's partial sums are
// per block, and add up in fp64 through kLanes lanes by block index, which are folded in halves. Threads: one
// caller at a time; the host's runner uses the exchange's threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"
#include "optimizer/agreement.h"
#include "optimizer/job.h"
#include "optimizer/lamb_rule.h"

namespace onebit::optimizer {

class HostExchange;

class Runner {
 public:
  virtual ~Runner() = default;
  /// Runs `pass` over all jobs, in the order of calls. A device may still be at it on return.
  virtual void run(Pass pass, std::span<Job> jobs) = 0;
  /// Leaves the results of the last pass in the jobs, and says what has failed so far. Waits for a device.
  virtual Status fetch(std::span<Job> jobs) = 0;
  /// As fetch; and of what follows from those results of gradients, with `agreement`'s word, the sums over
  /// all ranks. Collective. Waits for a device, once.
  virtual Status agree(std::span<Job> jobs, Agreement& agreement) = 0;
  /// LAMB: makes each tensor's step of its rule and the results of the last pass, for the coming kApply.
  /// Waits for nothing: the numbers may be a device's from here on.
  virtual void choose_steps(std::span<const LambRule> rules, std::span<Job> jobs,
                            std::span<LambNumbers> numbers) = 0;
  /// Brings the numbers back, for the caller to read and change. Waits for a device.
  virtual Status fetch_numbers(std::span<LambNumbers> numbers) = 0;
};

/// `counts`: the elements of each job that it will be given. The exchange must outlive it.
std::unique_ptr<Runner> make_host_runner(HostExchange& exchange, std::span<const std::size_t> counts);

}  // namespace onebit::optimizer
