// The exact allreduce as stages of the schedule: pieces are sent from the send buffer and results received
// into the receive buffer, both without a copy; the owner sums the W pieces in rank order, so the result does
// not depend on timing.
//
// Threads: as schedule.h says.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "collective/aligned_buffer.h"
#include "collective/partition.h"
#include "collective/schedule.h"

namespace onebit::collective {

/// What the calls of a communicator reuse.
struct ExactBuffers {
  AlignedBuffer<std::byte> slots;   ///< pieces of other ranks
  std::vector<const void*> pieces;  ///< W for each chunk in flight
};

struct ExactCall {
  const void* send = nullptr;
  void* receive = nullptr;
  DataType type{};
  ReduceOp op{};
};

class ExactStages final : public Stages {
 public:
  ExactStages(const ExactCall& call, const PartitionPlan& plan, std::size_t rank, std::size_t ranks,
              std::size_t depth, ExactBuffers& buffers);
  Status allocate();

  Status prepare(std::size_t, std::size_t) override { return Status(); }
  std::span<const std::byte> piece(std::size_t owner, std::size_t chunk) override;
  std::span<std::byte> piece_slot(std::size_t from, std::size_t chunk) override;
  Status reduce(std::size_t chunk) override;
  std::span<const std::byte> result(std::size_t chunk) override { return result_slot(rank_, chunk); }
  std::span<std::byte> result_slot(std::size_t owner, std::size_t chunk) override;
  Status consume(std::size_t, std::size_t) override { return Status(); }
  bool passes_data_through() const override { return true; }

 private:
  std::size_t slot_bytes() const { return plan_.chunk_elements() * size_of(call_.type); }

  const ExactCall call_;
  const PartitionPlan plan_;
  const std::size_t rank_;
  const std::size_t ranks_;
  const std::size_t depth_;
  ExactBuffers& buffers_;
};

}  // namespace onebit::collective
