// The scalar reference of the 1-bit block codec: docs/format.md, sections 2 to 5, in C++. Every other
// implementation gives its bits. Pure functions, any thread. They do not set the floating-point environment:
// `reference_kernels` wraps them for that.
#pragma once

#include <span>

#include "codec/kernels.h"

namespace onebit::codec {

/// The reference as an implementation named "scalar".
const Kernels& reference_kernels() noexcept;

}  // namespace onebit::codec
