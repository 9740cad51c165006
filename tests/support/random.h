// Random numbers for tests, the same on every machine. A value; one thread at a time.
#pragma once

#include <cstdint>

namespace onebit::testing {

/// A small deterministic generator (splitmix64), the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// Uniform in [-1, 1), a multiple of 2^-23.
  float unit() { return static_cast<float>(static_cast<std::int64_t>(bits() >> 40) - (1 << 23)) / (1 << 23); }

 private:
  std::uint64_t state_;
};

}  // namespace onebit::testing
