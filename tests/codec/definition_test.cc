// What the codec does, by hand-made examples and by its properties, for every implementation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <vector>

#include "test_data.h"

namespace onebit::codec::test {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

struct Coded {
  std::vector<float> error, scales;
  std::vector<std::uint8_t> bits;
};

class Definition : public testing::TestWithParam<const Implementation*> {
 protected:
  const Implementation& implementation = *GetParam();

  Coded encode(const std::vector<float>& x, std::vector<float> error, Parameters parameters) const {
    Coded coded{std::move(error), std::vector<float>(scale_count(x.size(), parameters.block)),
                std::vector<std::uint8_t>(bit_bytes(x.size()))};
    implementation.encode(DataType::kFloat32, x.data(), x.size(), parameters, coded.error.data(),
                          reinterpret_cast<std::byte*>(coded.scales.data()), coded.bits.data());
    return coded;
  }
  Coded encode(const std::vector<float>& x, Parameters parameters) const {
    return encode(x, std::vector<float>(x.size()), parameters);
  }
  std::vector<float> decode(const Coded& coded, Parameters parameters) const {
    std::vector<float> y(coded.error.size());
    implementation.decode(DataType::kFloat32, packed(coded), y.size(), parameters, y.data());
    return y;
  }
  static Packed packed(const Coded& coded) {
    return {reinterpret_cast<const std::byte*>(coded.scales.data()), coded.bits.data()};
  }
};

INSTANTIATE_TEST_SUITE_P(Codec, Definition, testing::ValuesIn(implementations_under_test()),
                         NameOfImplementation());

TEST_P(Definition, TheExampleOfTheFormatDocumentHolds) {
  const std::vector<float> x = {1.0f, -2.0f, 0.0f, -0.0f, 3.0f, -4.0f, 5.0f, -1.0f, 2.0f, -2.0f};
  const std::vector<float> error = {0.0f, 0.0f, 0.0f, 0.0f, -1.0f, 0.0f, 0.0f, 1.0f, 0.0f, 1.0f};
  const Coded mean = encode(x, error, {256, Scale::kMean});
  EXPECT_EQ(mean.scales, (std::vector<float>{1.7f}));  // (1+2+0+0+2+4+5+0+2+1) / 10
  EXPECT_EQ(mean.bits, (std::vector<std::uint8_t>{0xdd, 0x01}));
  const float s = 1.7f;
  EXPECT_EQ(mean.error, (std::vector<float>{1 - s, -2 + s, -s, -s, 2 - s, -4 + s, 5 - s, -s, 2 - s, -1 + s}));
  const Coded rms = encode(x, error, {256, Scale::kRms});
  EXPECT_EQ(rms.scales, (std::vector<float>{std::sqrt(5.5f)}));  // (1+4+0+0+4+16+25+0+4+1) / 10
  EXPECT_EQ(rms.bits, mean.bits);
}

TEST_P(Definition, ABlockOfZerosGivesExactZerosAndNoDrift) {
  const std::vector<float> x(600, 0.0f);
  const Coded coded = encode(x, {256, Scale::kRms});
  for (float y : decode(coded, {256, Scale::kRms})) ASSERT_EQ(y, 0.0f);
  for (float e : coded.error) ASSERT_EQ(e, 0.0f);
}

TEST_P(Definition, BothZerosAreCodedAsPlus) {
  for (float zero : {0.0f, -0.0f}) {
    std::vector<float> x(256, zero);
    x[255] = 16.0f;
    const Coded coded = encode(x, {256, Scale::kRms});
    EXPECT_EQ(coded.scales, (std::vector<float>{1.0f}));
    EXPECT_THAT(coded.bits, testing::Each(0xff));
    EXPECT_EQ(coded.error[0], -1.0f);
  }
}

TEST_P(Definition, ABlockWithANonFiniteNumberIsNanAndKeepsItsErrorsAndTheOthersAreClean) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, FLT_MAX}) {
    std::vector<float> x(3 * 256 + 5, 1.0f);
    x[300] = bad;
    const std::vector<float> error(x.size(), 0.5f);
    const Coded coded = encode(x, error, {256, Scale::kRms});
    EXPECT_EQ(bits_of(coded.scales[1]), kNanBits);
    for (std::size_t i = 256; i < 512; ++i) ASSERT_EQ(coded.error[i], 0.5f);
    for (std::size_t i = 256 / 8; i < 512 / 8; ++i) ASSERT_EQ(coded.bits[i], 0xff);
    const std::vector<float> y = decode(coded, {256, Scale::kRms});
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / 256 == 1) {
        ASSERT_EQ(bits_of(y[i]), kNanBits);
      } else {
        ASSERT_EQ(y[i], 1.5f);
      }
    }
  }
}

TEST_P(Definition, ANanBlockAtTheEndHasZeroUnusedBits) {
  std::vector<float> x(13, 1.0f);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(encode(x, {256, Scale::kRms}).bits, (std::vector<std::uint8_t>{0xff, 0x1f}));
}

TEST_P(Definition, AFiniteMeanOfHugeNumbersIsCodedAndAnOverflowingSumIsNan) {
  const std::vector<float> x(256, FLT_MAX / 256);
  EXPECT_EQ(encode(x, {256, Scale::kMean}).scales, (std::vector<float>{FLT_MAX / 256}));
  EXPECT_EQ(bits_of(encode(x, {256, Scale::kRms}).scales[0]), kNanBits);
}

TEST_P(Definition, AnAverageOfPiecesIsTheirMeanAndANanPieceMakesTheBlockNan) {
  const Parameters parameters{256, Scale::kMean};
  const Coded a = encode(std::vector<float>(512, 3.0f), parameters);
  const Coded b = encode(std::vector<float>(512, -1.0f), parameters);
  std::vector<Packed> pieces = {packed(a), packed(b)};
  Coded out{std::vector<float>(512), std::vector<float>(2), std::vector<std::uint8_t>(64)};
  auto* const scales = reinterpret_cast<std::byte*>(out.scales.data());
  implementation.average(pieces, 512, 0.5f, parameters, out.error.data(), scales, out.bits.data());
  EXPECT_EQ(out.scales, (std::vector<float>{1.0f, 1.0f}));
  EXPECT_THAT(decode(out, parameters), testing::Each(1.0f));

  std::vector<float> bad(512, 1.0f);
  bad[0] = kInfinity;
  const Coded c = encode(bad, parameters);
  pieces = {packed(a), packed(c)};
  implementation.average(pieces, 512, 0.5f, parameters, out.error.data(), scales, out.bits.data());
  EXPECT_EQ(bits_of(out.scales[0]), kNanBits);
  EXPECT_EQ(out.scales[1], 2.0f);
}

TEST_P(Definition, MeanScaleAlwaysContractsTheResidual) {
  SplitMix64 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> x(2048);
    double before = 0, after = 0;
    for (float& v : x) v = std::ldexp(random.uniform(), static_cast<int>(random.next() % 20));
    const Coded coded = encode(x, {256, Scale::kMean});
    for (std::size_t i = 0; i < x.size(); ++i) {
      before += static_cast<double>(x[i]) * x[i];
      after += static_cast<double>(coded.error[i]) * coded.error[i];
    }
    EXPECT_LT(after, before);
  }
}

TEST_P(Definition, TheSumOfOutputsOverManyCallsIsTheSumOfInputsLessTheLastError) {
  for (Scale scale : kScales) {
    const Parameters parameters{256, scale};
    const std::size_t n = 1000;
    SplitMix64 random(7);
    std::vector<double> inputs(n), outputs(n);
    std::vector<float> error(n);
    constexpr int kCalls = 100;
    for (int call = 0; call < kCalls; ++call) {
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i) {
        x[i] = random.uniform() + 0.25f;
        inputs[i] += x[i];
      }
      const Coded coded = encode(x, error, parameters);
      error = coded.error;
      const std::vector<float> y = decode(coded, parameters);
      for (std::size_t i = 0; i < n; ++i) outputs[i] += y[i];
    }
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(inputs[i] - outputs[i], error[i], 1e-3);
      ASSERT_LT(std::fabs(inputs[i] - outputs[i]) / kCalls, 0.2);
    }
  }
}

TEST_P(Definition, WholeModeWithOneSubBlockIsTheSameAsOneBlock) {
  const std::vector<float> x = [] {
    SplitMix64 random(9);
    std::vector<float> made(2048);
    for (float& v : made) v = random.uniform();
    return made;
  }();
  for (Scale scale : kScales) {
    const Coded expected = encode(x, {2048, scale});
    float sum = 0;
    std::vector<float> error(x.size());
    std::vector<std::uint8_t> bits(256);
    implementation.sums(DataType::kFloat32, x.data(), x.size(), scale, error.data(), &sum);
    const float s = whole_scale({&sum, 1}, x.size(), scale);
    EXPECT_EQ(s, expected.scales[0]);
    implementation.quantize(DataType::kFloat32, x.data(), x.size(), s, error.data(), bits.data());
    EXPECT_EQ(error, expected.error);
    EXPECT_EQ(bits, expected.bits);
  }
}

TEST(WholeScale, IsTheRootMeanSquareOrTheMeanOfAllSubBlocks) {
  const std::vector<float> sums(1000, 8192.0f);
  EXPECT_EQ(whole_scale(sums, 1000 * 2048, Scale::kRms), 2.0f);
  EXPECT_EQ(whole_scale(sums, 1000 * 2048, Scale::kMean), 4.0f);
  EXPECT_EQ(whole_scale({}, 0, Scale::kRms), 0.0f);
}

TEST(WholeScale, IsNanWhenASumIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    std::vector<float> sums(300, 1.0f);
    sums[299] = bad;
    EXPECT_EQ(bits_of(whole_scale(sums, 300 * 2048, Scale::kRms)), kNanBits);
  }
}

TEST(WholeScale, AddsInTheOrderOfTheDocument) {
  SplitMix64 random(3);
  std::vector<float> sums(1000);
  for (float& s : sums) s = std::fabs(random.uniform()) * 1000;
  double lane[256] = {};
  for (std::size_t i = 0; i < sums.size(); ++i) lane[i % 256] += static_cast<double>(sums[i]);
  for (int half = 128; half >= 1; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  EXPECT_EQ(whole_scale(sums, 2048000, Scale::kMean), static_cast<float>(lane[0] / 2048000.0));
}

TEST(Registry, BeginsWithTheReferenceAndFindsEachImplementationByItsName) {
  ASSERT_FALSE(implementations().empty());
  EXPECT_EQ(implementations().front().name, "scalar");
  for (const Implementation& implementation : implementations()) {
    const auto found = find_implementation(implementation.name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, &implementation);
  }
  EXPECT_EQ(*find_implementation("auto"), &implementations().back());
}

TEST(Registry, AnUnknownNameIsAnErrorThatListsTheNamesThatThisProcessorHas) {
  const auto found = find_implementation("abacus");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(found.status().message(), HasSubstr("abacus"));
  for (const Implementation& implementation : implementations()) {
    EXPECT_THAT(found.status().message(), HasSubstr(std::string(implementation.name)));
  }
}

}  // namespace
}  // namespace onebit::codec::test
