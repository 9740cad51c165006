// A call of a communicator with two levels, in its parts: inside the nodes, between them, and inside again.
// Values; each function puts work of NCCL's on the call's stream, within a group. Threads: as Levels.
#pragma once

#include "collective/nccl/levels.h"

namespace onebit::nccl {

class LevelCall {
 public:
  /// `stream`: the request's, or one of its communicator's own. `sums`: for a reduce-scatter.
  LevelCall(const Request& request, Levels& levels, cudaStream_t stream, std::byte* sums)
      : request_(&request),
        levels_(&levels),
        stream_(stream),
        sums_(sums),
        plan_(request.shape.count, levels.place().size, request.shape.count + 8) {}
  /// Bytes of the sums of nodes that a reduce-scatter has in between, with room for the next one's to start
  /// at a multiple of 16.
  static std::size_t sums_bytes(const Request& request, const LevelPlace& place) {
    return (place.nodes * request.shape.count * size_of(request.type) + 15) / 16 * 16;
  }

  const Request& request() const { return *request_; }
  Levels& levels() const { return *levels_; }
  cudaStream_t stream() const { return stream_; }
  bool scatters() const { return request_->shape.scatters; }

  /// What is compressed of it: this rank's part of the node's sum. Nothing when that is empty.
  std::optional<Request> between() const;

  // Parts by NCCL.
  Result reduce_inside(const Functions& nccl) const;
  Result reduce_between_exactly(const Functions& nccl) const;
  Result gather_inside(const Functions& nccl) const;

 private:
  Type type() const { return static_cast<Type>(request_->type); }
  Op op() const { return static_cast<Op>(request_->op); }
  /// This rank's partition of an allreduce inside its node.
  collective::Range own() const { return plan_.partition(levels_->place().place); }
  std::byte* at(const void* buffer, std::size_t element) const {
    return static_cast<std::byte*>(const_cast<void*>(buffer)) + element * size_of(request_->type);
  }
  /// Whether one call of NCCL's can take all partitions.
  bool is_even() const { return own_count() * levels_->place().size == request_->shape.count; }
  std::size_t own_count() const { return plan_.partition_elements(); }
  /// Calls each(partition, rank of the node) for those that have elements.
  template <typename Each>
  Result for_partitions(Each each) const;
  Result scatter_inside(const Functions& nccl) const;

  const Request* request_;
  Levels* levels_;
  cudaStream_t stream_;
  std::byte* sums_;
  collective::PartitionPlan plan_;  ///< of an allreduce: what each rank of a node has of it
};

}  // namespace onebit::nccl
