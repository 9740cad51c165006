// The floating-point environment in which the codec is defined: round to nearest even, subnormals kept,
// nothing traps.
//
// A host process may run with flush-to-zero or another rounding mode. Every entry of the codec holds a
// DefaultFloatEnvironment while it calls its kernel, through with_default_environment. The kernel must not be
// inlined there (ONEBIT_CODEC_KERNEL), because a compiler may move arithmetic past the instruction that sets
// the mode. Invariant: the caller's mode and flags are restored. Thread-local by nature.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

#define ONEBIT_CODEC_KERNEL [[gnu::noinline]]

namespace onebit::codec {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
#if defined(__SSE2__)
  DefaultFloatEnvironment() noexcept : saved_(_mm_getcsr()) {
    _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // MXCSR: all exceptions masked, nearest, neither FTZ nor DAZ
  unsigned saved_;
#else
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() {
    std::fesetenv(&saved_);
  }

 private:
  std::fenv_t saved_;
#endif
};

/// A function with the signature of kKernel, which calls it in the default environment.
template <auto kKernel>
struct WithDefaultEnvironment;

template <typename R, typename... Args, R (*kKernel)(Args...) noexcept>
struct WithDefaultEnvironment<kKernel> {
  static R call(Args... args) noexcept {
    const DefaultFloatEnvironment environment;
    return kKernel(args...);
  }
};

}  // namespace onebit::codec
