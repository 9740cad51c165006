// Two levels of a communicator whose ranks share nodes: a communicator inside each node, and one between
// nodes for each place in them.
//
// An allreduce then is: reduced inside the node in full precision, each rank one partition; that partition
// compressed between nodes, by the communicator of its place; gathered inside the node. Of what L ranks of a
// node would each send to other nodes, each sends an L-th, and only sums of nodes are rounded to 1 bit. All
// ranks get the same bytes, since every partition comes from one communicator. Where a rank lacks memory for
// a partition, that one goes the exact way. Used by one thread at a time, as their communicator.
#pragma once

#include <optional>
#include <span>

#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {

/// Where a rank is when all nodes have as many ranks, more than one, and there are several nodes.
struct LevelPlace {
  unsigned nodes, node;  ///< nodes are numbered by their first ranks
  unsigned size, place;  ///< ranks of a node, and which of them
};
/// `hosts`: a number of each rank's node. Nothing where two levels do not fit.
std::optional<LevelPlace> place_of(std::span<const std::uint64_t> hosts, unsigned rank);

class Levels {
 public:
  /// A communicator that is to have two levels.
  struct Making {
    NcclCommunicator* communicator;
    LevelPlace place;
  };
  /// Makes them for each. Collective over all ranks of each.
  static Result make(std::span<const Making> all);
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;
  /// Ends NCCL's communicators, if they were not aborted.
  ~Levels();

  /// Any thread.
  void abort();
  bool is_aborted() const { return is_aborted_.load(); }
  const LevelPlace& place() const { return place_; }
  Comm inside() const { return inside_; }
  Comm between() const { return between_; }
  NcclCommunicator& compressed() const { return *compressed_; }

 private:
  Levels(const Functions& nccl, LevelPlace place) : nccl_(nccl), place_(place) {}
  static Result split(std::span<const std::unique_ptr<Levels>> made, std::span<const Making> all,
                      Comm Levels::*comm);

  const Functions nccl_;
  const LevelPlace place_;
  Comm inside_ = nullptr;
  Comm between_ = nullptr;
  std::unique_ptr<NcclCommunicator> compressed_;  ///< over `between_`
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace onebit::nccl
