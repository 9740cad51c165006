#include "collective/exact_stages.h"

#include <algorithm>

#include "codec/codec.h"

namespace onebit::collective {

ExactStages::ExactStages(const ExactCall& call, const PartitionPlan& plan, std::size_t rank,
                         std::size_t ranks, std::size_t depth, AlignedBuffer<std::byte>& slots)
    : call_(call),
      plan_(plan),
      rank_(rank),
      ranks_(ranks),
      depth_(std::min(depth, plan.chunks())),
      slots_(slots) {}

Status ExactStages::allocate() {
  return slots_.reserve(ranks_ * depth_ * slot_bytes());
}

std::span<const std::byte> ExactStages::piece(std::size_t owner, std::size_t chunk) {
  const Range range = plan_.chunk(owner, chunk);
  const std::size_t element = size_of(call_.type);
  return {static_cast<const std::byte*>(call_.send) + range.begin * element, range.length * element};
}

std::span<std::byte> ExactStages::piece_slot(std::size_t from, std::size_t chunk) {
  return {slots_.data() + (from * depth_ + chunk % depth_) * slot_bytes(),
          plan_.chunk(rank_, chunk).length * size_of(call_.type)};
}

Status ExactStages::reduce(std::size_t chunk) {
  std::vector<const void*> pieces(ranks_);
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
