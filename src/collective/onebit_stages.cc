#include "collective/onebit_stages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/frame.h"

namespace onebit::collective {

OneBitStages::OneBitStages(const OneBitCall& call, const PartitionPlan& plan, std::size_t rank,
                           std::size_t ranks, std::size_t depth, OneBitBuffers& buffers)
    : call_(call),
      plan_(plan),
      rank_(rank),
      ranks_(ranks),
      depth_(std::min(depth, plan.chunks())),
      frame_capacity_((codec::frame_bytes(std::min(plan.chunk_elements(), plan.partition_elements()),
                                          call.parameters.block) +
                       63) /
                      64 * 64),
      factor_(call.op == ReduceOp::kAvg ? 1.0F / static_cast<float>(ranks) : 1.0F),
      buffers_(buffers) {}

Status OneBitStages::allocate() {
  ONEBIT_RETURN_IF_ERROR(buffers_.frames.reserve(3 * ranks_ * depth_ * frame_capacity_));
  buffers_.pieces.resize(std::max(buffers_.pieces.size(), ranks_ * depth_));
  if (!whole()) return Status();
  ONEBIT_RETURN_IF_ERROR(buffers_.averaged.reserve(plan_.partition(rank_).length));
  return buffers_.sums.reserve(ranks_ * codec::sub_block_count(plan_.partition_elements()));
}

std::size_t OneBitStages::measure_steps() const {
  return whole() ? ranks_ * plan_.chunks() : 0;
}

void OneBitStages::measure(std::size_t step) {
  const std::size_t owner = step / plan_.chunks();
  const Range range = plan_.chunk(owner, step % plan_.chunks());
  const std::size_t first = owner * codec::sub_block_count(plan_.partition_elements()) +
                            (range.begin - plan_.partition(owner).begin) / codec::kSubBlock;
  call_.codec->sums(call_.type, input(range), range.length, call_.parameters.scale, worker_error(range),
                    buffers_.sums.data() + first);
}

void OneBitStages::finish_measure() {
  if (!whole()) return;
  // Full partitions fill their part of the array; the first one that is not full ends it.
  std::size_t used = 0;
  for (std::size_t owner = 0; owner < ranks_; ++owner)
    used += codec::sub_block_count(plan_.partition(owner).length);
  worker_scale_ = codec::whole_scale({buffers_.sums.data(), used}, call_.count, call_.parameters.scale);
}

Status OneBitStages::prepare(std::size_t owner, std::size_t chunk) {
  const Range range = plan_.chunk(owner, chunk);
  std::byte* to = frame(Slot::kPieceOut, owner, chunk);
  codec::write_frame_header(to, range.length, call_.parameters);
  std::byte* scales = codec::frame_scales(to);
  std::uint8_t* bits = codec::frame_bits(to, range.length, call_.parameters.block);
  if (!whole()) {
    call_.codec->encode(call_.type, input(range), range.length, call_.parameters, worker_error(range), scales,
                        bits);
  } else if (range.length != 0) {
    std::memcpy(scales, &worker_scale_, sizeof worker_scale_);
    call_.codec->quantize(call_.type, input(range), range.length, worker_scale_, worker_error(range), bits);
  }
  return Status();
}

std::span<const std::byte> OneBitStages::piece(std::size_t owner, std::size_t chunk) {
  return {frame(Slot::kPieceOut, owner, chunk),
          codec::frame_bytes(plan_.chunk(owner, chunk).length, call_.parameters.block)};
}

std::span<std::byte> OneBitStages::piece_slot(std::size_t from, std::size_t chunk) {
  return {frame(Slot::kPieceIn, from, chunk),
          codec::frame_bytes(plan_.chunk(rank_, chunk).length, call_.parameters.block)};
}

Status OneBitStages::reduce(std::size_t chunk) {
  const Range range = plan_.chunk(rank_, chunk);
  const std::size_t bytes = codec::frame_bytes(range.length, call_.parameters.block);
  const std::span<codec::Packed> pieces(buffers_.pieces.data() + chunk % depth_ * ranks_, ranks_);
  for (std::size_t from = 0; from < ranks_; ++from) {
    const std::byte* piece = frame(from == rank_ ? Slot::kPieceOut : Slot::kPieceIn, from, chunk);
    const auto opened = codec::open_frame({piece, bytes}, range.length, call_.parameters);
    if (!opened.ok()) return opened.status().with_context(formatted("piece of rank {}", from));
    pieces[from] = *opened;
  }
  float* owner_error = call_.residual->owner_error.data() + own_offset(chunk);
  if (whole()) {
    call_.codec->accumulate(pieces, range.length, factor_, call_.parameters.scale, owner_error,
                            buffers_.averaged.data() + own_offset(chunk),
                            buffers_.sums.data() + own_offset(chunk) / codec::kSubBlock);
    return Status();
  }
  std::byte* to = frame(Slot::kResult, rank_, chunk);
  codec::write_frame_header(to, range.length, call_.parameters);
  call_.codec->average(pieces, range.length, factor_, call_.parameters, owner_error, codec::frame_scales(to),
                       codec::frame_bits(to, range.length, call_.parameters.block));
  return Status();
}

Status OneBitStages::finish_reduction() {
  const std::size_t owned = plan_.partition(rank_).length;
  owner_scale_ = codec::whole_scale({buffers_.sums.data(), codec::sub_block_count(owned)}, owned,
                                    call_.parameters.scale);
  return Status();
}

Status OneBitStages::emit(std::size_t chunk) {
  const Range range = plan_.chunk(rank_, chunk);
  std::byte* to = frame(Slot::kResult, rank_, chunk);
  codec::write_frame_header(to, range.length, call_.parameters);
  if (range.length == 0) return Status();
  std::memcpy(codec::frame_scales(to), &owner_scale_, sizeof owner_scale_);
  call_.codec->quantize(DataType::kFloat32, buffers_.averaged.data() + own_offset(chunk), range.length,
                        owner_scale_, call_.residual->owner_error.data() + own_offset(chunk),
                        codec::frame_bits(to, range.length, call_.parameters.block));
  return Status();
}

std::span<const std::byte> OneBitStages::result(std::size_t chunk) {
  return {frame(Slot::kResult, rank_, chunk),
          codec::frame_bytes(plan_.chunk(rank_, chunk).length, call_.parameters.block)};
}

std::span<std::byte> OneBitStages::result_slot(std::size_t owner, std::size_t chunk) {
  return {frame(Slot::kResult, owner, chunk),
          codec::frame_bytes(plan_.chunk(owner, chunk).length, call_.parameters.block)};
}

Status OneBitStages::consume(std::size_t owner, std::size_t chunk) {
  const Range range = plan_.chunk(owner, chunk);
  const auto opened = codec::open_frame(result_slot(owner, chunk), range.length, call_.parameters);
  if (!opened.ok()) return opened.status().with_context(formatted("result of rank {}", owner));
  call_.codec->decode(call_.type, *opened, range.length, call_.parameters,
                      static_cast<std::byte*>(call_.receive) + range.begin * size_of(call_.type));
  return Status();
}

std::byte* OneBitStages::frame(Slot slot, std::size_t rank, std::size_t chunk) {
  const std::size_t index = (static_cast<std::size_t>(slot) * ranks_ + rank) * depth_ + chunk % depth_;
  return buffers_.frames.data() + index * frame_capacity_;
}

const std::byte* OneBitStages::input(Range range) const {
  return static_cast<const std::byte*>(call_.send) + range.begin * size_of(call_.type);
}

std::size_t OneBitStages::own_offset(std::size_t chunk) const {
  return plan_.chunk(rank_, chunk).begin - plan_.partition(rank_).begin;
}

}  // namespace onebit::collective
