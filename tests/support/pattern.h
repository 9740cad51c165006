// Bytes for messages, which tell what came where.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace onebit::testing {

/// Bytes that depend on the position and on `seed`.
inline std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> made(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::size_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(made.data() + i, &state, std::min<std::size_t>(8, bytes - i));
  }
  return made;
}

}  // namespace onebit::testing
