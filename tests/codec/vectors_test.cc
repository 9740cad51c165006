// The published test vectors hold for every implementation.
#include <gtest/gtest.h>

#include "vectors.h"

namespace onebit::codec::test {
namespace {

class PublishedVectors : public testing::TestWithParam<const Implementation*> {};

INSTANTIATE_TEST_SUITE_P(Codec, PublishedVectors, testing::ValuesIn(implementations_under_test()),
                         NameOfImplementation());

TEST_P(PublishedVectors, AreWhatThisImplementationComputes) {
  const Implementation& implementation = *GetParam();
  const std::vector<VectorCase> cases = read_vectors(ONEBIT_VECTORS_FOLDER);
  ASSERT_GE(cases.size(), 19u);
  for (const VectorCase& one : cases) {
    for (const auto& [name, found] : run_case(implementation, one)) {
      EXPECT_EQ(found, one.array(name)) << one.about.at("name") << ": " << name;
    }
  }
}

TEST(PublishedVectorFiles, HoldANanBlockBesideCleanOnes) {
  for (const VectorCase& one : read_vectors(ONEBIT_VECTORS_FOLDER)) {
    if (one.about.at("name") != "encode-fp32-nan" && one.about.at("name") != "encode-bf16-infinity") continue;
    const Bytes& scales = one.array("scales");
    std::size_t nans = 0;
    for (std::size_t b = 0; b < scales.size() / 4; ++b) nans += std::isnan(as<float>(scales)[b]) ? 1 : 0;
    EXPECT_GT(nans, 0u) << one.about.at("name");
    EXPECT_LT(nans, scales.size() / 4) << one.about.at("name");
  }
}

}  // namespace
}  // namespace onebit::codec::test
