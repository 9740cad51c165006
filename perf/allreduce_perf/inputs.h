// The data of the measurements: inputs whose reduction is known in advance, for every type, and random ones.
//
// Known sums: element i of rank r is a(i) + r % 64 * c(i) with small whole numbers a and c made from a hash
// of i, so the sum over the ranks is known without their data, and exact in fp32; a misplaced, missing or
// doubled piece shows. In 1 bit: +-1 by a hash of i, alike on all ranks, is what 1 bit carries without loss
// (each block's scale is 1, and at the owner W), so here too every element is known. Pure functions of their
// arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace onebit::perf {

/// A buffer's type and place in the job.
struct Shape {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int rank = 0;
  int ranks = 1;
};

/// Writes this rank's data of the known sums. `salt` makes other data.
void fill_known(const Shape& shape, std::uint64_t salt, void* data, std::size_t count);
/// How many elements of a result differ from the exact reduction of fill_known's data.
std::size_t count_wrong(const Shape& shape, std::uint64_t salt, const void* data, std::size_t count);

/// Writes data that 1 bit carries without loss.
void fill_signs(const Shape& shape, std::uint64_t salt, void* data, std::size_t count);
/// How many elements of a result are not the reduction of fill_signs' data, but for rounding.
std::size_t count_wrong_signs(const Shape& shape, std::uint64_t salt, const void* data, std::size_t count);

/// Writes sums of four uniform numbers (nearly normal: mean 0, variance 1), other ones on each rank.
void fill_normal(const Shape& shape, std::uint64_t salt, void* data, std::size_t count);

/// data[i] as a double, added to sums[i].
void add_to(DataType type, const void* data, std::size_t count, double* sums);

}  // namespace onebit::perf
