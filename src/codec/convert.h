// fp16 and bf16 to and from fp32, one number at a time, in integer arithmetic: the same whatever the
// processor's floating-point mode. Rounding is to nearest even; a NaN becomes the one quiet NaN of the narrow
// type. Pure functions, any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace onebit::codec {

/// The NaN that the codec writes: as a scale, and as an element of each type.
constexpr std::uint32_t kNanBits = 0x7fc00000;
constexpr std::uint16_t kHalfNanBits = 0x7e00;
constexpr std::uint16_t kBFloat16NanBits = 0x7fc0;

/// `value` / 2^shift, rounded to nearest even; shift from 1 to 31.
constexpr std::uint32_t shift_right_rounded(std::uint32_t value, unsigned shift) noexcept {
  const std::uint32_t half_less_one = (std::uint32_t{1} << (shift - 1)) - 1;
  return (value + half_less_one + ((value >> shift) & 1)) >> shift;
}

constexpr float bfloat16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const unsigned leading =
      static_cast<unsigned>(std::countl_zero(mantissa)) - 21;  // to bring the 1 to bit 10
  mantissa = (mantissa << leading) & 0x3ff;
  return std::bit_cast<float>(sign | (113 - leading) << 23 | mantissa << 13);
}

constexpr std::uint16_t float_to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return kBFloat16NanBits;
  return static_cast<std::uint16_t>(bits >> 31 << 15 | shift_right_rounded(bits & 0x7fffffff, 16));
}

constexpr std::uint16_t float_to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 15;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t exponent = magnitude >> 23;
  if (magnitude > 0x7f800000) return kHalfNanBits;
  std::uint32_t result = 0;
  if (magnitude >= 0x477ff000) {
    result = 0x7c00;  // 65520 and more rounds to infinity
  } else if (exponent >= 113) {
    result = shift_right_rounded(magnitude - (std::uint32_t{112} << 23), 13);
  } else if (exponent >= 102) {  // a subnormal: a multiple of 2^-24
    result = shift_right_rounded((magnitude & 0x7fffff) | 0x800000, 126 - exponent);
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace onebit::codec
