// The residuals of a communicator: for each tag the worker error of the whole buffer and the owner error of
// this rank's partition.
//
// Invariant: an entry's errors belong to its count, type and op; a call with others drops them, with a log
// line. An entry is marked `in_call` while a call changes it; one that a failed call has left so is worthless
// and not saved. Threads: used by the communicator's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"
#include "collective/aligned_buffer.h"

namespace onebit::collective {

struct Residual {
  std::size_t count = 0;
  DataType type{};
  ReduceOp op{};
  AlignedBuffer<float> worker_error;  ///< count elements
  AlignedBuffer<float> owner_error;   ///< this rank's partition
  bool in_call = false;

  /// Zeros.
  static Result<Residual> create(std::size_t count, DataType type, ReduceOp op, std::size_t rank,
                                 std::size_t ranks);
};

/// Adds to `mine`, a residual of rank `rank` of `ranks`, what it inherits of `given` of rank `from` of
/// `old_ranks`, which has the same shape: the worker error when from % ranks == rank, times ranks / old_ranks
/// for AVG (so that the sum that is owed keeps its weight), and the owner errors of its partition.
void inherit_residual(const Residual& given, std::size_t from, std::size_t old_ranks, std::size_t rank,
                      std::size_t ranks, Residual& mine);

/// The sum of the squares of each half.
struct ResidualSquares {
  double worker = 0;
  double owner = 0;

  ResidualSquares& operator+=(const ResidualSquares& other) {
    worker += other.worker;
    owner += other.owner;
    return *this;
  }
};
ResidualSquares squares(const Residual& residual);

class ResidualStore {
 public:
  ResidualStore(std::size_t rank, std::size_t ranks) : rank_(rank), ranks_(ranks) {}

  /// The residual of `tag` for calls of this shape; zeros when it is new or had another shape.
  Result<Residual*> get(std::string_view tag, std::size_t count, DataType type, ReduceOp op);
  /// Drops `tag`; all when empty.
  void reset(std::string_view tag);
  /// Of `tag`, or of all when empty; bytes.
  std::size_t memory(std::string_view tag) const;
  /// Likewise.
  ResidualSquares squares(std::string_view tag) const;

  std::size_t rank() const { return rank_; }
  std::size_t ranks() const { return ranks_; }
  using Map = std::map<std::string, Residual, std::less<>>;
  const Map& entries() const { return entries_; }
  void replace(Map entries) { entries_ = std::move(entries); }

 private:
  std::size_t rank_;
  std::size_t ranks_;
  Map entries_;
};

}  // namespace onebit::collective
