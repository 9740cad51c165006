// What one target gives: the public kernels and the exact sum. The SIMD targets are compiled from one source
// (kernels.cc and the *-inl.h files) by google/highway. Immutable tables, any thread.
#pragma once

#include <cstddef>
#include <span>

#include "codec/codec.h"

namespace onebit::codec {

struct Kernels {
  Implementation implementation;
  void (*exact_sum)(DataType type, ReduceOp op, std::span<const void* const> pieces, std::size_t n,
                    void* out) noexcept;
};

/// The SIMD targets that were compiled and that this processor can run, best last.
std::span<const Kernels> simd_kernels() noexcept;
/// The reference and the SIMD targets of this processor, best last.
std::span<const Kernels> all_kernels() noexcept;

}  // namespace onebit::codec
