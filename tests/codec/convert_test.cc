// fp16 and bf16: every pattern read, and every rounding case written, is right in every implementation.
#include <gtest/gtest.h>

#include <vector>

#include "test_data.h"

namespace onebit::codec::test {
namespace {

constexpr std::size_t kPatterns = 65536;

/// The value of a pattern from its fields, in fp64; infinity and NaN as such.
double value_of(DataType type, std::uint16_t pattern) {
  const int mantissa_bits = type == DataType::kFloat16 ? 10 : 7;
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (pattern >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = pattern & ((1 << mantissa_bits) - 1);
  const double sign = (pattern & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

class Conversions : public testing::TestWithParam<const Implementation*> {
 protected:
  const Implementation& implementation = *GetParam();

  std::vector<std::uint16_t> narrow(DataType type, const std::vector<float>& values) const {
    // A block of 256 elements with one scale each: element 0 is +scale.
    const std::vector<std::uint8_t> bits(values.size() * 32, 0xff);
    std::vector<std::uint16_t> y(values.size() * 256);
    const Packed piece{reinterpret_cast<const std::byte*>(values.data()), bits.data()};
    implementation.decode(type, piece, y.size(), {256, Scale::kRms}, y.data());
    std::vector<std::uint16_t> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) result[i] = y[i * 256];
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(Codec, Conversions, testing::ValuesIn(implementations_under_test()),
                         NameOfImplementation());

TEST_P(Conversions, EveryPatternIsReadAsItsValue) {
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    std::vector<std::uint16_t> x(kPatterns);
    for (std::size_t i = 0; i < kPatterns; ++i) x[i] = static_cast<std::uint16_t>(i);
    std::vector<float> error(kPatterns);
    std::vector<std::uint8_t> bits(kPatterns / 8);
    implementation.quantize(type, x.data(), kPatterns, 0.0f, error.data(), bits.data());  // error = x - 0
    for (std::size_t i = 0; i < kPatterns; ++i) {
      const double expected = value_of(type, x[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(error[i])) << i;
      } else {
        ASSERT_EQ(error[i], expected) << i;
      }
      ASSERT_EQ(bits[i / 8] >> (i % 8) & 1, !(expected < 0)) << i;
    }
  }
}

TEST_P(Conversions, EveryFinitePatternIsWrittenFromItsValueAndItsNeighbourhoodToTheNearestEven) {
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const std::uint16_t infinity = type == DataType::kFloat16 ? 0x7c00 : 0x7f80;
    std::vector<float> values;
    std::vector<std::uint16_t> expected;
    for (std::uint16_t p = 0; p + 1 < infinity; ++p) {
      const double low = value_of(type, p), high = value_of(type, static_cast<std::uint16_t>(p + 1));
      const auto middle = static_cast<float>((low + high) / 2);  // exact in fp32
      const std::uint16_t up = p + 1, even = p % 2 == 0 ? p : up;
      values.insert(values.end(), {static_cast<float>(low), std::nextafter(middle, 0.0f), middle,
                                   std::nextafter(middle, std::numeric_limits<float>::infinity())});
      expected.insert(expected.end(), {p, p, even, up});
    }
    const std::vector<std::uint16_t> found = narrow(type, values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(found[i], expected[i]) << values[i];
  }
}

TEST_P(Conversions, WhatIsTooLargeBecomesInfinityAndANanBecomesTheOneNan) {
  const float huge = std::numeric_limits<float>::max();
  const std::vector<float> values = {65519.0f,
                                     65520.0f,
                                     huge,
                                     std::bit_cast<float>(0x7f800001u),
                                     std::bit_cast<float>(0xffc12345u),
                                     std::bit_cast<float>(0x7f7f7fffu)};
  EXPECT_EQ(narrow(DataType::kFloat16, values),
            (std::vector<std::uint16_t>{0x7bff, 0x7c00, 0x7c00, 0x7e00, 0x7e00, 0x7c00}));
  EXPECT_EQ(narrow(DataType::kBFloat16, values),
            (std::vector<std::uint16_t>{0x4780, 0x4780, 0x7f80, 0x7fc0, 0x7fc0, 0x7f7f}));
}

}  // namespace
}  // namespace onebit::codec::test
