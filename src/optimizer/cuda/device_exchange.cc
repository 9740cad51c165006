// DeviceExchange over libonebit-cuda.so's table of functions.
//
// Invariant: after the first failure, which every later call returns, nothing more is run. What a pass or a
// copy fails with shows at the next call that waits.

#include "optimizer/device_exchange.h"

#include <sys/random.h>

#include <array>
#include <vector>

#include "base/log.h"
#include "cuda/open_library.h"
#include "cuda/real_nccl.h"
#include "optimizer/cuda/side_table.h"

namespace onebit::optimizer {
namespace {

using collective::Residual;
using cuda::DeviceSide;
using cuda::SideSettings;
using cuda::SideTable;

/// The side, for those that use it.
class Side {
 public:
  Side(const SideTable& table, DeviceSide* side) : table_(table), side_(side) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() { table_.destroy(side_); }

  /// (*this)(&SideTable::function, arguments...)
  template <typename Function, typename... Arguments>
  auto operator()(Function SideTable::*function, Arguments... arguments) const {
    return (table_.*function)(side_, arguments...);
  }
  template <typename... Parameters, typename... Arguments>
  Status status_of(cuda::Report (*SideTable::*function)(DeviceSide*, Parameters...),
                   Arguments... arguments) const {
    return (table_.*function)(side_, arguments...).status();
  }

 private:
  const SideTable& table_;
  DeviceSide* const side_;
};

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(const Side& side) : side_(side) {}
  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    ONEBIT_RETURN_IF_ERROR(side_.status_of(&SideTable::allocate, bytes, &memory));
    return memory;
  }
  void release(void* memory) noexcept override { side_(&SideTable::release, memory); }
  void zero(float* to, std::size_t count) override { side_(&SideTable::zero, to, count * sizeof *to); }
  void copy(float* to, const float* from, std::size_t count) override {
    side_(&SideTable::copy, to, from, count * sizeof *to);
  }
  Status read(void* to, const void* from, std::size_t bytes) override {
    return side_.status_of(&SideTable::read, to, from, bytes);
  }
  Status write(void* to, const void* from, std::size_t bytes) override {
    return side_.status_of(&SideTable::write, to, from, bytes);
  }
  Status check(const void* address, std::size_t alignment) override {
    return side_.status_of(&SideTable::check, address, alignment);
  }

 private:
  const Side& side_;
};

class DeviceRunner final : public Runner {
 public:
  explicit DeviceRunner(const Side& side) : side_(side) {}
  void run(Pass pass, std::span<Job> jobs) override {
    side_(&SideTable::run, pass, jobs.data(), jobs.size());
  }
  Status fetch(std::span<Job> jobs) override {
    return side_.status_of(&SideTable::fetch, jobs.data(), jobs.size());
  }
  Status agree(std::span<Job> jobs, Agreement& agreement) override {
    return side_.status_of(&SideTable::agree, jobs.data(), jobs.size(), &agreement);
  }
  void choose_steps(std::span<const LambRule> rules, std::span<Job> /*jobs*/,
                    std::span<LambNumbers> numbers) override {
    side_(&SideTable::choose_steps, rules.data(), numbers.data(), rules.size());
  }
  Status fetch_numbers(std::span<LambNumbers> numbers) override {
    return side_.status_of(&SideTable::fetch_numbers, numbers.data(), numbers.size());
  }

 private:
  const Side& side_;
};

class DeviceExchange final : public Exchange {
 public:
  DeviceExchange(const SideTable& table, DeviceSide* side, const SideSettings& settings)
      : side_(table, side), memory_(side_), settings_(settings) {}
  std::size_t rank() const override { return settings_.rank; }
  std::size_t ranks() const override { return settings_.ranks; }
  std::uint64_t job() const override { return job_; }
  Status usable() const override { return side_(&SideTable::usable).status(); }
  std::string describe() const override {
    return formatted("ONEBIT_BLOCK {}, ONEBIT_SCALE {}, ONEBIT_CHUNK {}", settings_.block,
                     settings_.scale_is_mean ? "mean" : "rms", settings_.chunk);
  }
  Memory& memory() override { return memory_; }
  Result<std::unique_ptr<Runner>> make_runner(std::span<const std::size_t> counts) override {
    ONEBIT_RETURN_IF_ERROR(side_.status_of(&SideTable::make_queue, counts.data(), counts.size()));
    return std::unique_ptr<Runner>(std::make_unique<DeviceRunner>(side_));
  }
  Status made(const Status& own) override;

  Status mean(float* data, std::size_t count) override {
    return side_.status_of(&SideTable::mean, data, count);
  }
  Status compressed_mean(float* data, std::size_t unit) override {
    return side_.status_of(&SideTable::compressed_mean, data, unit);
  }
  Status complete() override { return side_.status_of(&SideTable::complete); }
  Status all_gather(const void* send, void* receive, std::size_t bytes) override {
    return side_.status_of(&SideTable::all_gather, send, receive, bytes);
  }

  Status add_unit(const std::string& /*name*/, std::size_t count, bool whole) override {
    ONEBIT_RETURN_IF_ERROR(side_.status_of(&SideTable::add_unit, count, whole));
    counts_.push_back(count);
    return Status();
  }
  std::size_t units() const override { return counts_.size(); }
  Result<const Residual*> residual(std::size_t unit) override;
  Status set_residual(std::size_t unit, Residual residual) override {
    return side_.status_of(&SideTable::write_residual, unit, residual.worker_error.data(),
                           residual.owner_error.data());
  }
  void clear_residuals() override { side_(&SideTable::clear_residuals); }
  bool has_worthless_residuals() const override { return side_(&SideTable::has_worthless_residuals); }
  std::size_t residual_bytes() const override { return side_(&SideTable::residual_bytes); }

 private:
  const Side side_;
  DeviceMemory memory_;
  const SideSettings settings_;
  std::uint64_t job_ = 0;
  std::vector<std::size_t> counts_;  // of the units
  Residual fetched_;
};

Status DeviceExchange::made(const Status& own) {
  struct Word {
    std::uint64_t made;
    std::uint64_t random;
  };
  Word mine{own.ok() ? std::uint64_t{1} : 0, 0};
  if (::getrandom(&mine.random, sizeof mine.random, 0) != sizeof mine.random) {
    return Status(Code::kSystemError, "the system has no random number to give");
  }
  std::vector<Word> all(ranks());
  const Status told = all_gather(&mine, all.data(), sizeof mine);
  ONEBIT_RETURN_IF_ERROR(own);
  ONEBIT_RETURN_IF_ERROR(told);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].made != 0) continue;
    return Status::error(Code::kRemoteError,
                         "rank {} cannot make its optimizer (its error says why), so no rank does", rank);
  }
  job_ = all[0].random;
  return Status();
}

Result<const Residual*> DeviceExchange::residual(std::size_t unit) {
  ONEBIT_ASSIGN_OR_RETURN(
      fetched_, Residual::create(counts_[unit], DataType::kFloat32, ReduceOp::kAvg, rank(), ranks()));
  ONEBIT_RETURN_IF_ERROR(side_.status_of(&SideTable::read_residual, unit, fetched_.worker_error.data(),
                                         fetched_.owner_error.data()));
  return &fetched_;
}

/// Puts the communicator's place into `settings`.
Status learn_place(const DevicePlace& place, const std::string& library, SideSettings& settings) {
  const nccl::RealNccl* const real =
      library.empty() ? nccl::real_nccl(place.caller) : nccl::real_nccl_at(library.c_str());
  if (real == nullptr) {
    return Status(Code::kInvalidUsage,
                  "no library in this process is NCCL: set ONEBIT_NCCL_LIBRARY to the one whose communicator "
                  "this is");
  }
  if (!real->is_recent()) {
    return Status::error(Code::kInvalidUsage, "NCCL {} has no ncclSend: 2.7 or later is needed",
                         real->version_text());
  }
  settings.comm = static_cast<nccl::Comm>(place.comm);
  settings.nccl = real->functions;
  int ranks = 0;
  int rank = 0;
  nccl::Result result = real->count(settings.comm, &ranks);
  if (result == nccl::kSuccess) result = real->user_rank(settings.comm, &rank);
  if (result == nccl::kSuccess) result = real->device(settings.comm, &settings.device);
  if (result != nccl::kSuccess) {
    return Status::error(Code::kInvalidArgument, "NCCL does not know the communicator: {}",
                         settings.nccl.error_string(result));
  }
  settings.ranks = static_cast<unsigned>(ranks);
  settings.rank = static_cast<unsigned>(rank);
  return Status();
}

}  // namespace

Result<std::unique_ptr<Exchange>> make_device_exchange(const Settings& settings, const DevicePlace& place) {
  ONEBIT_ASSIGN_OR_RETURN(const onebit::cuda::Library* const library,
                          onebit::cuda::open_library(settings.cuda_library));
  library->set_log_level(static_cast<int>(settings.debug));
  const SideTable& table = *library->optimizers;
  SideSettings own{};
  own.stream = static_cast<cudaStream_t>(place.stream);
  own.block = settings.block;
  own.scale_is_mean = settings.scale_is_mean;
  own.chunk = settings.chunk;
  own.milliseconds = static_cast<std::uint64_t>(settings.timeout.count());
  own.ranks = 1;
  ONEBIT_RETURN_IF_ERROR(place.comm != nullptr ? learn_place(place, settings.nccl_library, own)
                                               : table.current_device(&own.device).status());
  DeviceSide* side = nullptr;
  ONEBIT_RETURN_IF_ERROR(table.create(own, &side).status());
  return std::unique_ptr<Exchange>(std::make_unique<DeviceExchange>(table, side, own));
}

}  // namespace onebit::optimizer
