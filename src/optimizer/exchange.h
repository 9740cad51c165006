// What an optimizer needs around it: the ranks (means, agreement), and the memory and the runner of where it
// exchanges, the host or a device.
//
// What goes in 1 bit is a *unit*, whose residuals the exchange keeps. Invariant: every rank makes the same
// calls in the same order, and every rank gets the same bytes. Threads: used by the thread that steps the
// optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/communicator.h"
#include "collective/residual_store.h"
#include "optimizer/memory.h"
#include "optimizer/runner.h"

namespace onebit::optimizer {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t ranks() const = 0;
  /// A random number of the job, the same on all ranks.
  virtual std::uint64_t job() const = 0;
  /// The first failure that has made it unusable.
  virtual Status usable() const = 0;
  /// What ranks must have alike that nobody has compared yet, in words; empty where that is nothing.
  virtual std::string describe() const = 0;
  /// Of the arrays that it exchanges and of those beside them.
  virtual Memory& memory() = 0;
  /// `counts`: the elements of each job.
  virtual Result<std::unique_ptr<Runner>> make_runner(std::span<const std::size_t> counts) = 0;
  /// To be told, once, what making the optimizer on this rank came to; where that is collective, an error if
  /// it failed on any.
  virtual Status made(const Status& own) = 0;

  // ---- collective; on a device what they give is there once complete() says so ----
  /// data = the mean over ranks, exact.
  virtual Status mean(float* data, std::size_t count) = 0;
  /// data, of the unit's count = the mean over ranks, in 1 bit with error compensation.
  virtual Status compressed_mean(float* data, std::size_t unit) = 0;
  /// Waits for what was exchanged; an error if any of it failed.
  virtual Status complete() = 0;
  /// Of host memory.
  virtual Status all_gather(const void* send, void* receive, std::size_t bytes) = 0;
  /// Bytes that this rank has sent so far in all of these and in its runner's agreements.
  virtual std::uint64_t sent_bytes() const = 0;

  // ---- residuals ----
  /// Makes the residuals, of zeros, of one more unit. `name` is for messages; `whole`: one scale for all of
  /// it, the same for all units.
  virtual Status add_unit(const std::string& name, std::size_t count, bool whole) = 0;
  virtual std::size_t units() const = 0;
  /// A unit's, on the host; valid until the next call.
  virtual Result<const collective::Residual*> residual(std::size_t unit) = 0;
  virtual Status set_residual(std::size_t unit, collective::Residual residual) = 0;
  /// All to 0.
  virtual void clear_residuals() = 0;
  /// A call that was changing them has failed.
  virtual bool has_worthless_residuals() const = 0;
  virtual std::size_t residual_bytes() const = 0;
};

/// Over a communicator, which must outlive it.
class HostExchange final : public Exchange {
 public:
  explicit HostExchange(collective::Communicator& communicator) : communicator_(communicator) {}
  std::size_t rank() const override { return communicator_.rank(); }
  std::size_t ranks() const override { return communicator_.ranks(); }
  std::uint64_t job() const override { return communicator_.job(); }
  Status usable() const override { return communicator_.async_error(); }
  std::string describe() const override { return {}; }
  Memory& memory() override { return host_memory(); }
  Result<std::unique_ptr<Runner>> make_runner(std::span<const std::size_t> counts) override {
    return make_host_runner(*this, counts);
  }
  Status made(const Status& own) override { return own; }

  Status mean(float* data, std::size_t count) override;
  Status compressed_mean(float* data, std::size_t unit) override;
  Status complete() override { return Status(); }
  Status all_gather(const void* send, void* receive, std::size_t bytes) override {
    return communicator_.all_gather(send, receive, bytes);
  }
  /// The communicator's, with what others send over it.
  std::uint64_t sent_bytes() const override { return communicator_.bytes_sent(); }
  /// values = the sums over ranks.
  Status sum(std::span<double> values);

  Status add_unit(const std::string& name, std::size_t count, bool whole) override;
  std::size_t units() const override { return units_.size(); }
  Result<const collective::Residual*> residual(std::size_t unit) override { return &units_[unit].residual; }
  Status set_residual(std::size_t unit, collective::Residual residual) override;
  void clear_residuals() override;
  bool has_worthless_residuals() const override;
  std::size_t residual_bytes() const override;

  /// The SIMD implementation to use, by name.
  std::string_view implementation() const { return communicator_.implementation(); }
  /// Calls body(i) for i from 0 to count - 1 on several threads; `body` must not throw.
  template <typename Body>
  void parallel(std::size_t count, const Body& body) {
    communicator_.parallel(count, body);
  }

 private:
  struct Unit {
    std::string name;
    bool whole;
    collective::Residual residual;
  };

  collective::Communicator& communicator_;
  std::vector<Unit> units_;
};

std::unique_ptr<HostExchange> make_exchange(collective::Communicator& communicator);

}  // namespace onebit::optimizer
