// The 1-bit allreduce as stages of the schedule: encode with worker error, owner's average and encode,
// decode.
//
// Block mode: one pass over x and the worker error in `prepare`, one over the pieces in `reduce`, one over y
// in `consume`. Whole mode needs the worker's scale before the first piece (pass `sums`, made by `measure`)
// and the owner's after the last piece. Pieces and results are frames (codec/frame.h). Threads: as schedule.h
// says; buffers live in OneBitBuffers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "collective/aligned_buffer.h"
#include "collective/partition.h"
#include "collective/residual_store.h"
#include "collective/schedule.h"

namespace onebit::collective {

/// What the calls of a communicator reuse: slots for frames, O(chunk * W * depth) bytes; in whole mode also
/// the averaged partition.
struct OneBitBuffers {
  AlignedBuffer<std::byte> frames;
  AlignedBuffer<float> averaged;
  AlignedBuffer<float> sums;
  std::vector<codec::Packed> pieces;  ///< W for each chunk in flight
};

struct OneBitCall {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DataType type{};
  ReduceOp op{};
  codec::Parameters parameters;
  const codec::Implementation* codec = nullptr;
  Residual* residual = nullptr;
};

class OneBitStages final : public Stages {
 public:
  /// `plan` cuts the buffer into chunks of whole blocks. With parameters.block == kWhole, depth is
  /// plan.chunks().
  OneBitStages(const OneBitCall& call, const PartitionPlan& plan, std::size_t rank, std::size_t ranks,
               std::size_t depth, OneBitBuffers& buffers);

  /// Makes room in the buffers; before the schedule starts.
  Status allocate();
  /// Whole mode: the pass that gives the worker's scale, before the schedule starts. Steps may run on several
  /// threads at once; finish_measure after all of them. Block mode has none.
  std::size_t measure_steps() const;
  void measure(std::size_t step);
  void finish_measure();

  Status prepare(std::size_t owner, std::size_t chunk) override;
  std::span<const std::byte> piece(std::size_t owner, std::size_t chunk) override;
  std::span<std::byte> piece_slot(std::size_t from, std::size_t chunk) override;
  Status reduce(std::size_t chunk) override;
  Status finish_reduction() override;
  Status emit(std::size_t chunk) override;
  std::span<const std::byte> result(std::size_t chunk) override;
  std::span<std::byte> result_slot(std::size_t owner, std::size_t chunk) override;
  Status consume(std::size_t owner, std::size_t chunk) override;
  bool emits_at_end() const override { return whole(); }

 private:
  bool whole() const { return call_.parameters.block == codec::kWhole; }
  /// The kinds of slots, each of W x depth frames.
  enum class Slot : std::uint8_t { kPieceOut, kPieceIn, kResult };
  std::byte* frame(Slot slot, std::size_t rank, std::size_t chunk);
  const std::byte* input(Range range) const;
  float* worker_error(Range range) const { return call_.residual->worker_error.data() + range.begin; }
  /// Where this rank's chunk starts in its partition.
  std::size_t own_offset(std::size_t chunk) const;

  const OneBitCall call_;
  const PartitionPlan plan_;
  const std::size_t rank_;
  const std::size_t ranks_;
  const std::size_t depth_;
  const std::size_t frame_capacity_;
  const float factor_;
  OneBitBuffers& buffers_;
  float worker_scale_ = 0;
  float owner_scale_ = 0;
};

}  // namespace onebit::collective
