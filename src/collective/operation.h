// A collective call in progress: what the communicator's progress loop drives to its end.
//
// Threads: used by the thread that makes the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/thread_pool.h"
#include "transport/transport.h"

namespace onebit::collective {

/// What an operation needs of its communicator.
struct Peers {
  std::size_t rank = 0;
  std::span<transport::Endpoint* const> endpoints;  ///< one a rank; null for this rank
  ThreadPool* pool = nullptr;                       ///< null: compute in the calling thread
  std::uint32_t operation = 0;                      ///< the number of this call, equal on all ranks
  std::uint32_t check = 0;                          ///< what the call is; equal on all ranks that agree
  /// For what the operation keeps in the calling thread. One that is kept from call to call, as a pool,
  /// makes later calls of the same shape take nothing from the system.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();

  std::size_t size() const { return endpoints.size(); }
  /// The i-th peer after this rank, i from 1 to size() - 1: ranks that start at different peers do not crowd
  /// one of them.
  std::size_t after(std::size_t i) const { return (rank + i) % size(); }
};

/// Why a request with rank `peer` has failed.
Status request_failure(const Peers& peers, std::size_t peer);
/// What an endpoint's send or receive has come to, naming the rank.
Status started(const Peers& peers, std::size_t peer, const Status& status);

/// The tag of a message: which call, which chunk, which phase of it.
constexpr std::uint64_t message_tag(std::uint32_t operation, std::size_t chunk, unsigned phase) {
  return (std::uint64_t{operation} << 32) | (static_cast<std::uint64_t>(chunk) << 1) | phase;
}

/// Which call.
constexpr std::uint32_t operation_of(std::uint64_t tag) {
  return static_cast<std::uint32_t>(tag >> 32);
}

class Operation {
 public:
  virtual ~Operation() = default;
  virtual Status start() = 0;
  virtual Status on_request(transport::Request& request) = 0;
  virtual Status on_task(Task& /*task*/) { return Status(); }
  /// Runs a piece of waiting computation in the calling thread; false when there is none.
  virtual Result<bool> compute_one() { return false; }
  virtual bool done() const = 0;
  /// The ranks that hold the operation up, as far as this rank can tell.
  virtual std::vector<std::size_t> waiting_for() const = 0;
};

}  // namespace onebit::collective
