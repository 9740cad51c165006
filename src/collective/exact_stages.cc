#include "collective/exact_stages.h"

#include <algorithm>

#include "codec/codec.h"

namespace onebit::collective {

ExactStages::ExactStages(const ExactCall& call, const PartitionPlan& plan, std::size_t rank,
                         std::size_t ranks, std::size_t depth, ExactBuffers& buffers)
    : call_(call),
      plan_(plan),
      rank_(rank),
      ranks_(ranks),
      depth_(std::min(depth, plan.chunks())),
      buffers_(buffers) {}

Status ExactStages::allocate() {
  buffers_.pieces.resize(std::max(buffers_.pieces.size(), ranks_ * depth_));
  return buffers_.slots.reserve(ranks_ * depth_ * slot_bytes());
}

std::span<const std::byte> ExactStages::piece(std::size_t owner, std::size_t chunk) {
  const Range range = plan_.chunk(owner, chunk);
  const std::size_t element = size_of(call_.type);
  return {static_cast<const std::byte*>(call_.send) + range.begin * element, range.length * element};
}

std::span<std::byte> ExactStages::piece_slot(std::size_t from, std::size_t chunk) {
  return {buffers_.slots.data() + (from * depth_ + chunk % depth_) * slot_bytes(),
          plan_.chunk(rank_, chunk).length * size_of(call_.type)};
}

Status ExactStages::reduce(std::size_t chunk) {
  const std::span<const void*> pieces(buffers_.pieces.data() + chunk % depth_ * ranks_, ranks_);
  for (std::size_t from = 0; from < ranks_; ++from) {
    pieces[from] = from == rank_ ? piece(rank_, chunk).data() : piece_slot(from, chunk).data();
  }
  codec::exact_sum(call_.type, call_.op, pieces, plan_.chunk(rank_, chunk).length,
                   result_slot(rank_, chunk).data());
  return Status();
}

std::span<std::byte> ExactStages::result_slot(std::size_t owner, std::size_t chunk) {
  const Range range = plan_.chunk(owner, chunk);
  const std::size_t element = size_of(call_.type);
  return {static_cast<std::byte*>(call_.receive) + range.begin * element, range.length * element};
}

}  // namespace onebit::collective
