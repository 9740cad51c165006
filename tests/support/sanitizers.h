// Whether this program has been built with a sanitizer.
#pragma once

namespace onebit::testing {

/// With a sanitizer programs are slower, an allocation that is too large ends them, and some checks take file
/// descriptors.
constexpr bool sanitized() {
#ifdef ONEBIT_SANITIZED
  return true;
#else
  return false;
#endif
}

}  // namespace onebit::testing
