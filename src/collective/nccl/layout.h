// Where the parts of a call's messages lie in device memory: pure arithmetic, the same on all ranks.
//
// A message is one piece: its scales, rounded up to 16 bytes, then its bits, likewise; a rank's messages lie
// `stride` bytes apart. Message p of a rank's outgoing ones is what it says about partition p. docs/format.md
// has the layout. Values only.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>

#include "codec/cuda/pieces.h"
#include "codec/parameters.h"
#include "collective/partition.h"

namespace onebit::nccl {

/// Automatic chunks: an eighth of a tensor, while the messages of all ranks to one have these bytes at least
/// and at most.
constexpr std::size_t kMostChunks = 8;
constexpr std::size_t kLeastMessages = std::size_t{1} << 20;
constexpr std::size_t kMostMessages = std::size_t{8} << 20;
/// While the averages of one chunk travel, the next one's pieces do.
constexpr std::size_t kChunksUnderWay = 2;

/// What a call reduces: `count` as the job gave it.
struct Shape {
  Shape(std::size_t all, bool is_scattered = false)  // NOLINT(google-explicit-constructor)
      : count(all), scatters(is_scattered) {}
  std::size_t count;  ///< elements of the buffer; of a rank's block where it scatters
  bool scatters;      ///< a reduce-scatter

  std::size_t elements(std::size_t ranks) const { return scatters ? count * ranks : count; }
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// Where the bits of a message of n elements begin.
constexpr std::size_t bits_offset(std::size_t n, std::uint32_t block) {
  return (4 * codec::scale_count(n, block) + 15) / 16 * 16;
}
constexpr std::size_t message_bytes(std::size_t n, std::uint32_t block) {
  return bits_offset(n, block) + codec::cuda::packed_bit_bytes(n);
}

/// One call: its partitions and chunks, and the sizes of its messages.
class Layout {
 public:
  /// `chunk`: elements of a partition that go in one message, 0 for automatic; rounded up to whole blocks.
  /// `whole` mode has one chunk: its scale is known when all of the buffer has been read.
  Layout(Shape shape, std::size_t ranks, codec::Parameters parameters, std::size_t chunk)
      : plan_(make_plan(shape, ranks, chunk_elements(shape.elements(ranks), ranks, parameters, chunk))),
        scatters_(shape.scatters),
        ranks_(ranks),
        block_(parameters.block) {}

  const collective::PartitionPlan& plan() const { return plan_; }
  bool scatters() const { return scatters_; }
  std::size_t ranks() const { return ranks_; }
  std::uint32_t block() const { return block_; }
  /// Bytes from a message about chunk `chunk` to the next: those of the first partition, which no other's are
  /// longer than.
  std::size_t stride(std::size_t chunk) const { return message_bytes(plan_.chunk(0, chunk).length, block_); }
  /// Where the worker errors of a chunk are, in elements: those of each partition start at a multiple of 8.
  std::size_t error_begin(std::size_t owner, std::size_t chunk) const {
    return owner * error_stride() + plan_.chunk(owner, chunk).begin - plan_.partition(owner).begin;
  }
  std::size_t worker_errors() const { return ranks_ * error_stride(); }
  /// Messages of a rank's about a chunk: outgoing and incoming pieces, and averages unless it scatters.
  std::size_t kinds() const { return scatters_ ? 2 : 3; }
  /// Bytes of those of all ranks, for the chunks that are under way at once; the first chunk is the longest.
  std::size_t staging_bytes() const {
    return std::min<std::size_t>(kChunksUnderWay, plan_.chunks()) * kinds() * ranks_ * stride(0);
  }
  /// Sub-blocks of all partitions, as `whole` mode counts them.
  std::size_t sub_blocks() const {
    std::size_t sum = 0;
    for (std::size_t p = 0; p < ranks_; ++p) sum += codec::sub_block_count(plan_.partition(p).length);
    return sum;
  }

 private:
  static collective::PartitionPlan make_plan(Shape shape, std::size_t ranks, std::size_t chunk) {
    if (shape.scatters) return collective::PartitionPlan::of_blocks(shape.count, ranks, chunk);
    return {shape.count, ranks, chunk};
  }
  std::size_t error_stride() const { return (plan_.partition_elements() + 7) / 8 * 8; }
  static std::size_t chunk_elements(std::size_t count, std::size_t ranks, codec::Parameters parameters,
                                    std::size_t chunk) {
    if (parameters.block == codec::kWhole) return std::max<std::size_t>(count, 8);
    if (chunk == 0) {
      const auto parts = [&](std::size_t bytes) { return (count + 8 * bytes - 1) / (8 * bytes); };
      const std::size_t chunks =
          std::max({std::size_t{1}, std::min(kMostChunks, parts(kLeastMessages)), parts(kMostMessages)});
      chunk = (count + chunks * ranks - 1) / (chunks * ranks);
    }
    chunk = std::max<std::size_t>(chunk, 1);
    return (chunk + parameters.block - 1) / parameters.block * parameters.block;
  }

  collective::PartitionPlan plan_;
  bool scatters_;
  std::size_t ranks_;
  std::uint32_t block_;
};

}  // namespace onebit::nccl
