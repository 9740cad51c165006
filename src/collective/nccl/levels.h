// Two levels of a communicator whose ranks share nodes: a communicator inside each node, and one between
// nodes for each place in them.
//
// An allreduce then is: reduced inside the node in full precision, each rank one partition; that partition
// compressed between nodes, by the communicator of its place; gathered inside the node. Of what L ranks of a
// node would each send to other nodes, each sends an L-th, and only sums of nodes are rounded to 1 bit. All
// ranks get the same bytes, since every partition comes from one communicator. Where a rank lacks memory for
// a partition, that one goes the exact way. A reduce-scatter likewise: inside the node each rank gets the
// node's sums of the blocks of all ranks with its place, in memory of its own, an L-th of the send buffer;
// between nodes these are scattered in 1 bit. Used by one thread at a time, as their communicator.
#pragma once

#include <optional>
#include <span>

#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {

/// Where a rank is when all nodes have as many ranks, more than one, and there are several nodes.
struct LevelPlace {
  unsigned nodes, node;         ///< nodes are numbered by their first ranks
  unsigned size, place;         ///< ranks of a node, and which of them
  std::vector<unsigned> ranks;  ///< by node and place

  unsigned rank(unsigned of_node, unsigned of_place) const { return ranks[of_node * size + of_place]; }
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

  /// Whether all ranks of the communicator have so much memory for sums of nodes.
  bool has_sums(std::size_t bytes) const { return bytes <= sums_admitted_; }
  /// Whether they were asked for it, or more.
  bool is_asked_for_sums(std::size_t bytes) const { return bytes <= sums_asked_; }
  /// Makes the memory, waiting for its stream; `admit_sums` with what all ranks have said of theirs.
  bool make_sums(std::size_t bytes);
  void admit_sums(std::size_t bytes, bool have_all);
  std::byte* sums() const { return sums_.data(); }

 private:
  Levels(const Functions& nccl, LevelPlace place) : nccl_(nccl), place_(std::move(place)) {}
  static Result split(std::span<const std::unique_ptr<Levels>> made, std::span<const Making> all,
                      Comm Levels::*comm);

  const Functions nccl_;
  const LevelPlace place_;
  Comm inside_ = nullptr;
  Comm between_ = nullptr;
  std::unique_ptr<NcclCommunicator> compressed_;  ///< over `between_`
  DeviceMemory sums_;
  std::size_t sums_asked_ = 0;
  std::size_t sums_admitted_ = 0;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace onebit::nccl
