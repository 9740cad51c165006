// One rank of onebit_nccl_client: a device with its communicator, stream and buffers, and what it checks.
//
// Threads: the one that drives it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_cpu/client/options.h"

namespace onebit::nccl_client {

/// One kind of allreduce.
struct Case {
  std::size_t count;
  std::string type;
  std::string op;
  bool in_place;

  ncclDataType_t nccl_type() const;
  ncclRedOp_t nccl_op() const { return op == "sum" ? ncclSum : ncclAvg; }
  std::size_t bytes() const;
};

class Rank {
 public:
  Rank(const Options& options, int rank);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Inside a group with those of the thread's other ranks.
  void join(const ncclUniqueId& id);
  /// Until the communicator, or what was started on it, is under way.
  void await() const;
  /// Buffers for the case, and a fresh start of what is measured.
  void prepare(const Case& next);
  void fill();
  void capture();
  void launch_graph() const;
  /// Inside a group.
  void allreduce() const;
  /// After the stream's work: takes in what came out.
  void take();
  /// Whether all results of the case were right; says what was not.
  bool judge() const;
  /// Of all results so far, the same on every rank.
  std::uint64_t digest() const { return digest_; }
  /// Waits for the stream, gives buffers and graph back.
  void release();
  void leave();

 private:
  float given(int rank, std::size_t i) const;
  double sum_of_given(std::size_t i) const;
  void take_one(std::size_t buffer);

  const Options& options_;
  const int rank_;
  int device_ = 0;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Case case_{};
  std::vector<void*> send_;  ///< one for each aggregated allreduce
  std::vector<void*> receive_;
  void* host_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::vector<double> expected_;  ///< exact results
  // What came out.
  int results_ = 0;
  std::size_t wrong_ = 0;
  double first_error_ = 0;   ///< mean over the elements of |first result - exact|
  std::vector<double> sum_;  ///< of the first buffer's results
  std::uint64_t digest_ = 0;
};

}  // namespace onebit::nccl_client
