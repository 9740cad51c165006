// The pieces that one launch of a CUDA kernel works on: plain descriptions, copied into the launch's
// parameters.
//
// A list of pieces is a tensor's partitions, or chunks of them, or those of several tensors. All pointers are
// device memory. `error` and `bits` are 16-byte aligned, x and y to their element; scales 4. `bits` has room
// for packed_bit_bytes: kernels write whole 16-byte units, unused bits 0. A piece starts at a block. No
// state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace onebit::codec::cuda {

/// Bytes of the bits of n elements in device memory: a multiple of 16.
constexpr std::size_t packed_bit_bytes(std::size_t n) {
  return (n + 127) / 128 * 16;
}

/// What encode, sums and quantize work on.
struct EncodePiece {
  const void* x;
  void* error;  ///< read, and written but by sums
  std::uint32_t* bits;
  float* scales;  ///< written, one a block; by sums: one sum a sub-block; quantize reads the one scale
  std::size_t elements;
};

/// What average and accumulate work on: a partition, or a chunk of it, as all ranks have sent it.
struct AveragePiece {
  const std::uint32_t* bits;  ///< of rank 0; that of rank r is `stride` * r bytes after it
  const float* scales;        ///< likewise
  std::size_t stride;         ///< a multiple of 16
  void* error;                ///< the owner's
  std::uint32_t* new_bits;
  float* new_scales;  ///< by accumulate: one sum a sub-block
  float* averaged;    ///< accumulate writes it; 16-byte aligned
  std::size_t elements;
};

/// What reduce works on: a block of a reduce-scatter, or a chunk of it, as all ranks have sent it.
struct ReducePiece {
  const std::uint32_t* bits;  ///< of all ranks, as in AveragePiece
  const float* scales;
  std::size_t stride;
  void* y;
  std::size_t elements;
};

/// What decode works on.
struct DecodePiece {
  const std::uint32_t* bits;
  const float* scales;  ///< one a block; one in all in `whole` mode
  void* y;
  std::size_t elements;
};

/// Pieces a launch, where they are as small as those above.
constexpr unsigned kMaxPieces = 48;

/// A launch's pieces, cut into units (blocks of elements) that are numbered through. A kernel's parameters
/// have room for 4096 bytes, some of which are for others than this.
template <typename Piece>
struct Batch {
  static constexpr unsigned kMost =
      std::min<unsigned>(kMaxPieces, (4096 - 64) / (sizeof(Piece) + sizeof(std::uint32_t)));
  unsigned count;
  unsigned unit_elements;
  std::uint32_t first_unit[kMost + 1];
  Piece pieces[kMost];
};

}  // namespace onebit::codec::cuda
