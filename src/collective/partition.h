// How a buffer is cut: into one partition an owner, and partitions into chunks. Pure arithmetic, the same on
// all ranks.
//
// A partition has roundup(ceil(count / W), 8) elements, so that partitions start at a whole byte of bits; the
// last ones may be shorter or empty. Those of a reduce-scatter are the ranks' blocks, whatever their length.
// Chunks are equal but for a partition's last; every partition has `chunks` of them, possibly empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace onebit::collective {

/// What an exact allreduce of `bytes` sends from each rank by a ring: 2 (W-1)/W of them.
constexpr std::uint64_t ring_bytes(std::uint64_t bytes, std::size_t ranks) {
  return 2 * (ranks - 1) * bytes / ranks;
}

struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

class PartitionPlan {
 public:
  /// `chunk` elements a chunk, at least 1; `chunks` is at least 1 even for count 0.
  PartitionPlan(std::size_t count, std::size_t ranks, std::size_t chunk)
      : count_(count), size_((count / ranks + (count % ranks != 0) + 7) / 8 * 8), chunk_(chunk) {}

  /// `ranks` partitions of `block` elements each.
  static PartitionPlan of_blocks(std::size_t block, std::size_t ranks, std::size_t chunk) {
    PartitionPlan plan(block * ranks, ranks, chunk);
    plan.size_ = block;
    return plan;
  }

  std::size_t chunk_elements() const { return chunk_; }
  std::size_t chunks() const { return std::max<std::size_t>(1, (size_ + chunk_ - 1) / chunk_); }
  /// Elements of every full partition.
  std::size_t partition_elements() const { return size_; }

  Range partition(std::size_t owner) const {
    const std::size_t begin = std::min(count_, owner * size_);
    return {begin, std::min(size_, count_ - begin)};
  }
  /// Positions in the whole buffer.
  Range chunk(std::size_t owner, std::size_t index) const {
    const Range whole = partition(owner);
    const std::size_t offset = std::min(whole.length, index * chunk_);
    return {whole.begin + offset, std::min(chunk_, whole.length - offset)};
  }

 private:
  std::size_t count_;
  std::size_t size_;
  std::size_t chunk_;
};

}  // namespace onebit::collective
