// The 1-bit block codec: the kernels' contract. docs/format.md defines every bit of it.
//
// z = x + e is coded as one bit an element (1 where !(z < 0)) and one fp32 scale s a block; the reader sees q
// = +s or -s, and the new error is fl(z - q). Error compensation as in 1-bit Adam (arXiv 2102.02888), section
// 4, with a scale a block. Invariant: every implementation gives the same bits as the scalar reference, for
// every input; the order of each sum is fixed by element index, with no contraction to FMA. Threads: all
// functions are pure on their arguments and may run at once on disjoint ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "codec/parameters.h"

namespace onebit::codec {

/// A coded piece as the owner reads it: `scales` (one a block; one in all in `whole` mode) and `bits` (1 an
/// element, element i is bit i % 8 of byte i / 8). Neither needs any alignment.
struct Packed {
  const std::byte* scales;
  const std::uint8_t* bits;
};

/// One set of kernels. All pointers may have any alignment that their element type needs (x and y: the
/// element's own size; errors: 4; scales, bits: 1). n = 0 does nothing. All are noexcept and set their own
/// floating-point environment (round to nearest, subnormals kept), which they restore.
struct Implementation {
  /// "scalar", or the SIMD target: "sse2", "ssse3", "sse4", "avx2", "avx512", "neon", "sve" ...
  std::string_view name;

  // ---- block mode; n elements, the first of which starts a block; the last block may be short ----

  /// Reads x (n of `type`), reads and writes `error` (n), writes scale_count scales and bit_bytes bytes of
  /// bits. The unused bits of the last byte are 0. A block whose sum is not finite has the scale NaN
  /// (0x7fc00000), all its bits 1, and keeps its errors.
  void (*encode)(DataType type, const void* x, std::size_t n, Parameters parameters, float* error,
                 std::byte* scales, std::uint8_t* bits) noexcept;

  /// The owner's pass: c = sum over pieces, in their order, of +-(scale * factor), then + owner_error; c is
  /// encoded as by `encode`, with the new owner error written. factor is fp32(1/W) for AVG and 1 for SUM.
  void (*average)(std::span<const Packed> pieces, std::size_t n, float factor, Parameters parameters,
                  float* owner_error, std::byte* scales, std::uint8_t* bits) noexcept;

  /// Writes y (n of `type`) = +-scale. fp16 and bf16 are rounded to nearest even. Large aligned outputs
  /// bypass the caches.
  void (*decode)(DataType type, Packed piece, std::size_t n, Parameters parameters, void* y) noexcept;

  // ---- whole mode; each is one pass over a piece that starts at a sub-block of its partition ----

  /// Writes the sum of each sub-block of z = x + error (z^2 or |z|): sub_block_count(n) fp32 numbers.
  void (*sums)(DataType type, const void* x, std::size_t n, Scale scale, const float* error,
               float* sums) noexcept;
  /// Codes z = x + error with the given scale: writes the bits and, when the scale is not NaN, the new error.
  void (*quantize)(DataType type, const void* x, std::size_t n, float scale, float* error,
                   std::uint8_t* bits) noexcept;
  /// averaged = sum over pieces, as in `average` (each piece has one scale), written to `averaged` (n); also
  /// writes the sums of the sub-blocks of averaged + owner_error. `quantize` of `averaged` then ends the
  /// owner's pass.
  void (*accumulate)(std::span<const Packed> pieces, std::size_t n, float factor, Scale scale,
                     const float* owner_error, float* averaged, float* sums) noexcept;
};

/// The scale of `whole` mode from the sums of all sub-blocks in ascending order; n elements in all. NaN if
/// not finite. The sums are added in fp64 in the order docs/format.md gives. 0 when n = 0.
float whole_scale(std::span<const float> sums, std::size_t n, Scale scale) noexcept;

/// The exact reduction: out[i] = sum over pieces, in their order, of piece[i]; times 1/W for AVG (floating
/// types only; fp32(1/W), fp64(1/W) for kFloat64). fp16 and bf16 are summed in fp32 and rounded once.
/// Integers wrap. `out` may be the same address as any one piece. Any element alignment.
void exact_sum(DataType type, ReduceOp op, std::span<const void* const> pieces, std::size_t n,
               void* out) noexcept;

/// The implementations that this processor can run, best last; the first is the scalar reference.
std::span<const Implementation> implementations() noexcept;
/// By name; "auto" is the best. An error lists the names that this processor has.
Result<const Implementation*> find_implementation(std::string_view name);

}  // namespace onebit::codec
