// Numbers in messages: little endian, wherever they lie. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onebit::transport {

namespace wire {
template <typename T>
void store(std::byte* to, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}
template <typename T>
T load(const std::byte* from) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}
}  // namespace wire

}  // namespace onebit::transport
