// What an optimizer needs of the ranks: means, agreement, and threads.
//
// Invariant: every rank makes the same calls in the same order, and every rank gets the same bytes. Threads:
// used by the thread that steps the optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "codec/codec.h"
#include "collective/communicator.h"
#include "collective/residual_store.h"

namespace onebit::optimizer {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t ranks() const = 0;
  /// data = the mean over ranks, exact.
  virtual Status mean(float* data, std::size_t count) = 0;
  /// data = the mean over ranks, in 1 bit with error compensation; `whole`: one scale for all of it.
  virtual Status compressed_mean(float* data, std::size_t count, std::string_view name, bool whole,
                                 collective::Residual& residual) = 0;
  /// values = the sums over ranks.
  virtual Status sum(std::span<double> values) = 0;
  virtual Status all_gather(const void* send, void* receive, std::size_t bytes) = 0;
  /// A random number of the job, the same on all ranks.
  virtual std::uint64_t job() const = 0;
  /// The first failure that has made it unusable.
  virtual Status usable() const = 0;
  /// The SIMD implementation to use, by name.
  virtual std::string_view implementation() const = 0;

  /// Calls body(i) for i from 0 to count - 1 on several threads; `body` must not throw.
  template <typename Body>
  void parallel(std::size_t count, const Body& body) {
    run_parallel(
        count, [](const void* context, std::size_t i) { (*static_cast<const Body*>(context))(i); }, &body);
  }

 protected:
  virtual void run_parallel(std::size_t count, void (*body)(const void* context, std::size_t i),
                            const void* context) = 0;
};

/// Over a communicator, which must outlive it.
std::unique_ptr<Exchange> make_exchange(collective::Communicator& communicator);

}  // namespace onebit::optimizer
