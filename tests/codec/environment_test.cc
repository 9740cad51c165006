// A host process with flush-to-zero, denormals-are-zero or another rounding mode gets the same bytes, and
// keeps its mode.
#include <gtest/gtest.h>

#include <cfenv>
#include <utility>
#include <vector>

#include "test_data.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace onebit::codec::test {
namespace {

constexpr std::size_t kElements = 1000;

struct Input {
  DataType type;
  Buffer x, error;
};

class FloatingPointEnvironment : public testing::TestWithParam<std::string> {
 protected:
  FloatingPointEnvironment() {
    for (Kind kind : {Kind::kSubnormal, Kind::kRandom, Kind::kWideRange}) {
      for (DataType type : kTypes) {
        inputs_.push_back(
            {type, numbers(type, kind, kElements, 1), numbers(DataType::kFloat32, kind, kElements, 2)});
      }
    }
  }
  void TearDown() override { std::fesetenv(FE_DFL_ENV); }

  /// All that the codec computes from the inputs.
  std::vector<Buffer> results() const {
    std::vector<Buffer> all;
    for (const Input& input : inputs_) {
      for (Scale scale : kScales) {
        for (Buffer& buffer : results_of(input, scale)) all.push_back(buffer);
      }
    }
    return all;
  }

 private:
  std::vector<Buffer> results_of(const Input& input, Scale scale) const {
    constexpr std::size_t n = kElements;
    const Implementation& by = **find_implementation(GetParam());
    const Parameters parameters{256, scale};
    const float third = std::bit_cast<float>(0x3eaaaaabu);

    Buffer error = input.error, scales(4 * scale_count(n, 256)), bits(bit_bytes(n)),
           y(n * size_of(input.type));
    by.encode(input.type, input.x.data(), n, parameters, error.as<float>(), scales.data(),
              bits.as<std::uint8_t>());
    const std::vector<Packed> pieces(3, Packed{scales.data(), bits.as<std::uint8_t>()});
    by.decode(input.type, pieces[0], n, parameters, y.data());

    Buffer owner_error = input.error, owner_scales(4 * scale_count(n, 256)), owner_bits(bit_bytes(n));
    by.average(pieces, n, third, parameters, owner_error.as<float>(), owner_scales.data(),
               owner_bits.as<std::uint8_t>());

    Buffer sums(4 * sub_block_count(n)), whole(4), whole_error = input.error, whole_bits(bit_bytes(n));
    by.sums(input.type, input.x.data(), n, scale, whole_error.as<float>(), sums.as<float>());
    *whole.as<float>() = whole_scale({sums.as<float>(), sub_block_count(n)}, n, scale);
    by.quantize(input.type, input.x.data(), n, *whole.as<float>(), whole_error.as<float>(),
                whole_bits.as<std::uint8_t>());
    Buffer averaged(4 * n), averaged_sums(4 * sub_block_count(n));
    by.accumulate(pieces, n, third, scale, input.error.as<float>(), averaged.as<float>(),
                  averaged_sums.as<float>());

    Buffer exact(n * size_of(input.type));
    const void* const parts[] = {input.x.data(), input.x.data(), input.x.data()};
    exact_sum(input.type, ReduceOp::kAvg, parts, n, exact.data());
    return {error, scales, bits,        y,          owner_error, owner_scales,  owner_bits,
            sums,  whole,  whole_error, whole_bits, averaged,    averaged_sums, exact};
  }

  std::vector<Input> inputs_;
};

INSTANTIATE_TEST_SUITE_P(Codec, FloatingPointEnvironment, testing::ValuesIn(all_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(FloatingPointEnvironment, OfTheHostDoesNotChangeTheBytesAndIsKept) {
  const std::vector<Buffer> expected = results();
  for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const std::vector<Buffer> found = results();
    EXPECT_EQ(std::fegetround(), mode);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(found, expected);
  }
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kMode = 0xffc0;
  const unsigned saved = _mm_getcsr();
  for (unsigned mode : {kFlushToZero, kDenormalsAreZero, kFlushToZero | kDenormalsAreZero}) {
    _mm_setcsr(saved | mode);
    const std::vector<Buffer> found = results();
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(after & kMode, (saved | mode) & kMode);
    EXPECT_EQ(found, expected);
  }
#endif
}

}  // namespace
}  // namespace onebit::codec::test
