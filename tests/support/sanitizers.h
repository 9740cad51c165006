// Whether this program has been built with a sanitizer.
#pragma once

namespace onebit::testing {

/// With the address or the thread sanitizer: slower, and an allocation that is too large ends the program.
constexpr bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return true;
#else
  return false;
#endif
#else
  return false;
#endif
}

}  // namespace onebit::testing
