// The two-phase schedule of an allreduce: alltoall of pieces, reduction by the owner, allgather of results,
// all in chunks.
//
// For chunk k of partition p:  every rank prepares its piece and sends it to owner p; the owner reduces the W
// pieces and sends the result to every rank; each consumes it. Chunk k is prepared while k-1 is on the wire
// and k-2 is reduced; there is no barrier between the phases. Both the 1-bit and the exact allreduce run on
// it; a Stages object says what happens to data.
//
//   rank r   prepare(p,k) --piece--> owner p   reduce(k) --result--> rank r   consume(p,k)
//
// Flow control: a rank sends piece k to an owner only when it has that owner's result k - depth, by which
// time the owner has reduced k - depth and posted the receive of piece k into the slot that became free. So a
// piece never waits unread, and a result waits only for computing at its receiver: no cycle of waits can
// form, whatever the order in which messages arrive. (Where results come only after all pieces, depth must be
// the number of chunks.)
//
// Threads: the object belongs to the thread that moves data; Stages' functions marked so run on compute
// threads, each for a different chunk or owner at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/operation.h"
#include "collective/stage_times.h"

namespace onebit::collective {

/// What the schedule does to data. A slot may be used again for chunk + depth once the schedule asks for that
/// chunk.
class Stages {
 public:
  virtual ~Stages() = default;
  /// Compute. Makes the piece of (owner, chunk) ready for `piece`.
  virtual Status prepare(std::size_t owner, std::size_t chunk) = 0;
  /// The bytes of a prepared piece, to be sent to its owner.
  virtual std::span<const std::byte> piece(std::size_t owner, std::size_t chunk) = 0;
  /// Where rank `from`'s piece of this rank's chunk is received; its size is what must arrive.
  virtual std::span<std::byte> piece_slot(std::size_t from, std::size_t chunk) = 0;
  /// Compute. Reduces the W pieces of this rank's chunk.
  virtual Status reduce(std::size_t chunk) = 0;
  /// Compute. Called once when all chunks are reduced, if `emits_at_end`.
  virtual Status finish_reduction() { return Status(); }
  /// Compute, if `emits_at_end`: makes the result of a chunk after finish_reduction.
  virtual Status emit(std::size_t /*chunk*/) { return Status(); }
  /// The bytes of this rank's result, to be sent to all.
  virtual std::span<const std::byte> result(std::size_t chunk) = 0;
  /// Where owner's result is received.
  virtual std::span<std::byte> result_slot(std::size_t owner, std::size_t chunk) = 0;
  /// Compute. Uses the owner's result (this rank's own too).
  virtual Status consume(std::size_t owner, std::size_t chunk) = 0;

  /// Results exist only after all chunks are reduced (one scale for a whole partition).
  virtual bool emits_at_end() const { return false; }
  /// prepare and consume do nothing: skip the trip through a compute thread.
  virtual bool passes_data_through() const { return false; }
};

class Schedule final : public Operation {
 public:
  /// `depth` chunks in flight, at least 1.
  Schedule(Stages& stages, const Peers& peers, std::size_t chunks, std::size_t depth);
  /// What is under way at once at most: a piece and a result, in and out, of each peer and chunk in flight;
  /// preparing and consuming each, reducing and emitting this rank's own, and the end of the reduction.
  static std::size_t most_transfers(std::size_t ranks, std::size_t depth) { return 4 * depth * ranks; }
  static std::size_t most_computations(std::size_t ranks, std::size_t depth) {
    return 2 * depth * (ranks + 1) + 1;
  }

  Status start() override;
  Status on_request(transport::Request& request) override;
  Status on_task(Task& task) override;
  Result<bool> compute_one() override;
  bool done() const override;
  std::vector<std::size_t> waiting_for() const override;
  /// Since start.
  StageTimes times() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : std::uint8_t { kPrepare, kReduce, kFinish, kEmit, kConsume };
  enum class Message : std::uint8_t { kPieceOut, kPieceIn, kResultOut, kResultIn };
  struct Computation final : Task {
    Schedule* schedule = nullptr;
    Stage stage{};
    std::size_t owner = 0;
    std::size_t chunk = 0;
    Status status;
    Clock::duration took{};

    void run() noexcept override;

   private:
    Status run_stage(Stages& stages) const;
  };
  struct Transfer {
    transport::Request request;
    Message message{};
    std::size_t peer = 0;
    std::size_t chunk = 0;
    std::size_t expected = 0;
  };
  struct Rank {
    std::size_t prepare_started = 0;  ///< chunks of this owner's partition whose preparation has begun
    std::size_t pieces_in = 0;        ///< pieces of this rank that have arrived here
    std::size_t results_in = 0;
  };

  bool may_prepare(std::size_t owner, std::size_t chunk) const;
  bool result_slot_is_free(std::size_t chunk) const;
  Status prepare_more();
  Status reduce_more();
  Status post_pieces(std::size_t chunk);
  Status send_result(std::size_t chunk);
  Status compute(Stage stage, std::size_t owner, std::size_t chunk);
  Status computed(Stage stage, std::size_t owner, std::size_t chunk);
  Status transfer(Message message, std::size_t peer, std::size_t chunk);
  Status transferred(Message message, std::size_t peer, std::size_t chunk);

  Stages& stages_;
  const Peers peers_;
  const std::size_t chunks_;
  const std::size_t depth_;
  std::pmr::vector<Rank> ranks_;
  std::pmr::vector<std::uint8_t> result_in_;  ///< by owner and chunk: its result is here
  std::pmr::vector<std::size_t>
      pieces_present_;  ///< by chunk: how many of the W pieces of this rank's partition are here
  std::pmr::vector<std::size_t>
      results_left_;  ///< by chunk: sends and own use of this rank's result that are not over
  std::pmr::vector<std::uint8_t> reduced_;  ///< by chunk
  std::size_t reduce_started_ = 0;
  std::size_t reduce_finished_ = 0;
  std::size_t consumed_ = 0;  ///< results used, of all owners
  std::size_t transfers_pending_ = 0;
  StageTimes times_;  ///< `call` and the present wait are not in it
  Clock::time_point started_;
  Clock::time_point waits_since_;  ///< while computing_ is 0
  std::size_t computing_ = 0;      ///< computations that have been asked for and are not over
  std::pmr::deque<Computation> computations_;
  std::pmr::vector<Computation*> free_computations_;
  std::pmr::deque<Computation*> inline_queue_;  ///< waiting computations, when there is no pool
  std::pmr::deque<Transfer> transfers_;
  std::pmr::vector<Transfer*> free_transfers_;
};

}  // namespace onebit::collective
