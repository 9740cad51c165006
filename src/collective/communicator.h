// A communicator: the ranks of a job joined by endpoints, and the collective calls between them.
//
// Invariant: every rank makes the same calls in the same order; operation_ counts them. After the first
// failure the communicator is broken: all endpoints are aborted, with the reason sent to the peers, and every
// later call returns that failure. Threads: one thread at a time (a second one is refused), except abort()
// and async_error(), which any thread may call.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "base/types.h"
#include "bootstrap/rendezvous.h"
#include "codec/codec.h"
#include "collective/exact_stages.h"
#include "collective/live_name.h"
#include "collective/onebit_stages.h"
#include "collective/operation.h"
#include "collective/residual_store.h"
#include "collective/rules.h"
#include "collective/stage_times.h"
#include "collective/thread_pool.h"
#include "transport/factory.h"

namespace onebit::collective {

/// Counters since the creation of the communicator.
struct Statistics {
  std::uint64_t exact_calls = 0;
  std::uint64_t compressed_calls = 0;
  std::uint64_t reduced_bytes = 0;
  std::uint64_t wire_bytes_sent = 0;
  std::uint64_t wire_bytes_received = 0;
  std::uint64_t residual_bytes = 0;
  StageTimes compressed;
};

class Communicator {
 public:
  /// Joins the ranks of `rendezvous` by a mesh of endpoints; collective. An error names the ranks that are
  /// missing or whose settings differ.
  static Result<std::unique_ptr<Communicator>> create(std::unique_ptr<bootstrap::Rendezvous> rendezvous,
                                                      std::string name, const Settings& settings);
  /// Ok when the settings whose values only this layer knows can be used on this machine.
  static Status check_settings(const Settings& settings);
  /// Orderly: says goodbye to the peers, waiting a bounded time for pending bytes. In a forked child: frees
  /// memory only.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::size_t rank() const { return rank_; }
  std::size_t ranks() const { return endpoints_.size(); }
  const std::string& name() const { return name_; }
  /// A random number, the same on all ranks, another for each communicator.
  std::uint64_t job() const { return job_; }

  // ---- collective calls; buffers as in onebit.h ----
  Status all_reduce(const void* send, void* receive, std::size_t count, DataType type, ReduceOp op,
                    std::string_view tag);
  /// Always in 1 bit, in place, whatever the rules say, with the caller's parameters and residual, which fits
  /// count, type and op. `name` is the tensor's, equal on all ranks. After an error the residual is worthless
  /// and marked `in_call`.
  Status compressed_all_reduce(void* buffer, std::size_t count, DataType type, ReduceOp op,
                               std::string_view name, const codec::Parameters& parameters,
                               Residual& residual);
  Status all_gather(const void* send, void* receive, std::size_t bytes);
  Status broadcast(const void* send, void* receive, std::size_t bytes, std::size_t root);
  Status barrier();
  /// All ranks load what they saved at one moment, or none loads anything; then each says which failed.
  Status load_residuals(const std::string& directory);

  // ---- local ----
  /// The codec's parameters of the settings.
  const codec::Parameters& parameters() const { return parameters_; }
  /// The name of the SIMD implementation in use.
  std::string_view implementation() const { return codec_->name; }
  /// Calls body(i) for i from 0 to count - 1, on the compute threads and this one; returns when all are over.
  /// `body` must not throw. Not within a collective call.
  template <typename Body>
  void parallel(std::size_t count, const Body& body) {
    run_parallel(
        count, [](const void* context, std::size_t i) { (*static_cast<const Body*>(context))(i); }, &body);
  }
  std::string explain(std::size_t count, DataType type, ReduceOp op, std::string_view tag) const;
  Result<Statistics> statistics();
  /// Bytes written to the network so far; between calls.
  std::uint64_t bytes_sent() const;
  // Residuals; kInvalidUsage while a call is in progress. What a failure has left can be saved.
  Status save_residuals(const std::string& directory);
  Status reset_residuals(std::string_view tag);
  Result<std::size_t> residual_memory(std::string_view tag);
  Result<ResidualSquares> residual_squares(std::string_view tag);
  /// Ok when this process made the communicator and it is not broken.
  Status usable() const;
  /// Ok when this process made the communicator, also when that is broken.
  Status in_own_process() const;

  // ---- any thread ----
  void abort() noexcept;
  Status async_error() const;

 private:
  Communicator(std::string name, const Settings& settings, std::size_t rank, std::size_t ranks);
  Status set_up(bootstrap::Rendezvous& rendezvous);
  Status connect(bootstrap::Rendezvous& rendezvous);
  Status compare_settings(bootstrap::Rendezvous& rendezvous);
  Status choose_transport(bootstrap::Rendezvous& rendezvous, Deadline deadline);
  /// Starts to connect to the ranks below this one.
  Status open_connections(std::span<const std::vector<std::byte>> handles);

  class CallGuard;
  /// Runs the body of a collective call. Whatever it fails with breaks the communicator, as this rank is then
  /// out of step with its peers.
  template <typename Body>
  Status in_step(const Body& body);
  Status gather_in_call(const void* send, void* receive, std::size_t bytes);
  Status exact_all_reduce(const void* send, void* receive, std::size_t count, DataType type, ReduceOp op);
  /// Every rank sends its whole buffer to every other: one hop, for small buffers.
  Status flat_all_reduce(const void* send, void* receive, std::size_t count, DataType type, ReduceOp op,
                         const Peers& peers);
  /// Pairs of ranks swap and sum, at twice the distance each round (recursive doubling): fewer messages than
  /// flat, for a power of two of ranks.
  Status doubling_all_reduce(const void* send, void* receive, std::size_t count, DataType type, ReduceOp op,
                             const Peers& peers);
  Status onebit_all_reduce(const void* send, void* receive, std::size_t count, DataType type, ReduceOp op,
                           std::string_view tag, const codec::Parameters& parameters, Residual& residual);
  using ParallelBody = void (*)(const void* context, std::size_t i);
  void run_parallel(std::size_t count, ParallelBody body, const void* context);
  /// Describes the call that begins, equally on all ranks: those whose descriptions differ find out.
  template <typename... Arguments>
  void say_call(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    current_call_.clear();
    append_formatted(current_call_, format, std::forward<Arguments>(arguments)...);
  }
  /// The peers of the next operation, of the call as described. `bytes` are this rank's, for the way of
  /// waiting.
  Peers next_operation(std::size_t bytes, bool with_pool);
  /// The compute threads, started at first use; null when the settings ask for none or they cannot be
  /// started.
  ThreadPool* pool();
  /// Runs an operation to its end, with up to `depth` chunks in flight. On a failure nothing of it is pending
  /// any more, and the communicator is broken.
  Status drive(Operation& operation, std::size_t depth = 1);
  Status drive_loop(Operation& operation);
  /// Ok unless a rank sends for another call than the one in which this rank waits for it.
  Status check_in_step() const;
  Status break_with(const Status& status);
  /// When a connection has broken: the end of one rank may show first as that of another, which gave up
  /// because of it and could not say so any more. Whatever else breaks within a moment is named, too.
  Status name_all_failed(const Status& first);
  Status endpoint_failure(const transport::Endpoint& endpoint) const;
  std::uint64_t bytes_moved() const;
  std::string describe(std::span<const std::size_t> ranks) const;

  const std::string name_;
  const Settings settings_;
  const std::size_t rank_;
  const pid_t process_;
  Rules rules_;
  const codec::Implementation* codec_ = nullptr;
  codec::Parameters parameters_;
  unsigned compute_threads_ = 0;
  std::vector<std::string> where_;  // by rank, for messages

  transport::Choice transport_;
  std::unique_ptr<transport::Context> context_;
  std::vector<std::unique_ptr<transport::Endpoint>> owned_endpoints_;
  std::vector<transport::Endpoint*> endpoints_;
  std::unique_ptr<ThreadPool> pool_;
  static constexpr std::size_t kPooledBytes = std::size_t{1} << 20;
  struct ParallelTask;
  std::vector<ParallelTask> parallel_tasks_;  // one a compute thread
  std::vector<transport::Request*> completed_;
  std::vector<Task*> finished_;

  std::uint32_t operation_ = 0;
  std::string current_call_;              // in words
  std::chrono::microseconds polling_{0};  // of the call: how long a wait polls before it sleeps
  std::uint64_t job_ = 0;
  std::optional<LiveName> live_name_;
  ResidualStore residuals_;
  OneBitBuffers onebit_buffers_;
  ExactBuffers exact_buffers_;
  /// What operations hold: a call of a shape that has been takes nothing from the system.
  std::pmr::unsynchronized_pool_resource call_memory_{{0, kPooledBytes}};
  Statistics statistics_;

  std::atomic<bool> in_call_{false};
  std::atomic<bool> abort_requested_{false};
  mutable std::mutex status_mutex_;
  Status status_;  // the first failure
};

}  // namespace onebit::collective
