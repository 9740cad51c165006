// What the shim knows of a communicator: its place in the job, how its calls are decided, what became of
// them.
//
// Decisions use only what is equal on all ranks. A communicator is used by one thread at a time, as NCCL has
// it; the registry is for any thread, and holds no lock while NCCL or CUDA is called. An aborted communicator
// lives until the last call in it returns.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "collective/rules.h"
#include "cuda/real_nccl.h"
#include "settings.h"

namespace onebit::shim {

using nccl::Config;
using nccl::real_nccl;
using nccl::RealNccl;

/// The arguments of ncclAllReduce or ncclReduceScatter.
struct Arguments {
  bool scatters;
  const void* send;
  void* receive;
  std::size_t count;
  nccl::Type type;
  nccl::Op op;
  cudaStream_t stream;
};

class Communicator {
 public:
  /// How a communicator was made, beside what NCCL says of it.
  struct Making {
    std::string name;
    bool is_blocking;    ///< its functions return when they are done
    bool is_everywhere;  ///< all its ranks have the shim, and use it
  };
  static Result<std::shared_ptr<Communicator>> create(const RealNccl* real, nccl::Comm comm, Making making);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  /// Compares the settings of all ranks of each; where they differ, all its calls go the exact way. Makes two
  /// levels where they fit. Collective. Ends with an error, and them aborted, when a rank does not come
  /// within ONEBIT_INIT_TIMEOUT.
  static nccl::Result meet(const std::vector<std::shared_ptr<Communicator>>& all);

  /// Whether the call is to be compressed, and under which tag ("": recognised by its buffer). Counts it;
  /// says why not at INFO.
  bool decide(const Arguments& call, std::string* tag);
  /// A compressed call turned out to be exact: a rank lacks memory.
  void count_as_exact(std::string_view tag);
  /// False, with a line in the log, when the call's buffers cannot be used by the communicator's device.
  bool accepts_buffers(const Arguments& call);

  /// The call as NCCL makes it.
  nccl::Result call_real(const Arguments& call) const;

  const RealNccl& real() const { return *real_; }
  nccl::Comm comm() const { return comm_; }
  nccl::NcclCommunicator* device_side() const { return device_side_; }
  const std::string& name() const { return making_.name; }
  bool is_blocking() const { return making_.is_blocking; }
  bool is_everywhere() const { return making_.is_everywhere; }
  /// NCCL is about to destroy it.
  void close();
  /// NCCL is about to abort it. Any thread.
  void abort();
  /// Aborts it, NCCL's part too, once: the job is not to have it. Any thread.
  void give_up();
  /// One line about all its calls.
  void log_summary();

 private:
  struct Counts {
    std::uint64_t compressed = 0;
    std::uint64_t exact = 0;
  };

  Communicator(const RealNccl* real, nccl::Comm comm, Making making)
      : real_(real), comm_(comm), making_(std::move(making)) {}
  /// What the ranks of those in `compared` have told, of each.
  using Told = std::vector<std::vector<std::uint64_t>>;
  static nccl::Result exchange(const std::vector<Communicator*>& compared, Told* told);
  /// Finds a difference in what ranks of one have told.
  void compare(const std::vector<std::uint64_t>& told);
  static nccl::Result make_levels(const std::vector<Communicator*>& compared, const Told& told);
  /// Its size, rank and device by NCCL.
  bool learn_place();
  bool is_warming_up(const std::string& tag, const Arguments& call);
  bool exact(const Arguments& call, std::string_view reason);
  /// As it is named in the log.
  std::string described(const Arguments& call) const;

  const RealNccl* const real_;
  const nccl::Comm comm_;
  const Making making_;
  int rank_ = 0;
  int ranks_ = 1;
  int device_ = 0;
  std::string obstacle_;  ///< why no call is compressed; empty if calls may be
  nccl::NcclCommunicator* device_side_ = nullptr;
  std::map<std::string, Counts, std::less<>> counts_;         ///< by tag; "" for calls without one
  std::map<std::string, std::uint32_t, std::less<>> warmup_;  ///< calls so far, by tag or size
  std::uint64_t exact_calls_ = 0;
  bool said_capture_ = false;
  std::atomic<bool> is_given_up_ = false;
  static constexpr std::size_t kKnownBuffers = 1024;
  std::unordered_set<const void*> known_buffers_;
};

// ---- the registry ----

void add(const std::shared_ptr<Communicator>& communicator);
/// Null for a communicator that was made where we could not see it.
std::shared_ptr<Communicator> find(nccl::Comm comm);
std::shared_ptr<Communicator> remove(nccl::Comm comm);

}  // namespace onebit::shim
