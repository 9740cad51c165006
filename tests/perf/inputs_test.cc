// The checks behind onebit_allreduce_perf's #wrong: right results pass, and every kind of fault is counted.
#include "../../perf/allreduce_perf/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace onebit::perf {
namespace {

constexpr std::size_t kCount = 5000;
constexpr int kRanks = 5;
constexpr DataType kTypes[] = {DataType::kInt32,   DataType::kInt64,   DataType::kFloat16,
                               DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16};

Shape of_rank(int rank, ReduceOp op = ReduceOp::kSum) {
  return {DataType::kFloat32, op, rank, kRanks};
}

std::vector<float> data_of(int rank) {
  std::vector<float> data(kCount);
  fill_known(of_rank(rank), 7, data.data(), kCount);
  return data;
}

/// The sum of the given ranks' data.
std::vector<float> sum_of(const std::vector<int>& ranks) {
  std::vector<float> sum(kCount);
  for (const int rank : ranks) {
    const std::vector<float> data = data_of(rank);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += data[i];
  }
  return sum;
}

std::size_t wrong(const std::vector<float>& result) {
  return count_wrong(of_rank(0), 7, result.data(), kCount);
}

TEST(KnownSums, ARightSumPasses) {
  EXPECT_EQ(wrong(sum_of({0, 1, 2, 3, 4})), 0u);
}

TEST(KnownSums, ARightAveragePasses) {
  std::vector<float> result = sum_of({0, 1, 2, 3, 4});
  for (float& value : result) value *= 1.0f / kRanks;
  EXPECT_EQ(count_wrong(of_rank(0, ReduceOp::kAvg), 7, result.data(), kCount), 0u);
}

TEST(KnownSums, AMissingADoubledAndAnotherRanksShareAreCounted) {
  EXPECT_GT(wrong(sum_of({0, 1, 2, 3})), kCount / 2);
  EXPECT_GT(wrong(sum_of({0, 1, 2, 3, 4, 4})), kCount / 2);
  EXPECT_GT(wrong(sum_of({0, 1, 2, 3, 3})), kCount / 2);
}

TEST(KnownSums, OneWrongElementIsCountedOnce) {
  std::vector<float> result = sum_of({0, 1, 2, 3, 4});
  result[1234] = std::nextafter(result[1234], 1e9f);
  EXPECT_EQ(wrong(result), 1u);
  result[99] = NAN;
  EXPECT_EQ(wrong(result), 2u);
}

TEST(KnownSums, APieceInTheWrongPlaceIsCounted) {
  std::vector<float> result = sum_of({0, 1, 2, 3, 4});
  std::rotate(result.begin(), result.begin() + 1, result.end());
  EXPECT_GT(wrong(result), kCount / 2);
}

TEST(KnownSums, EveryTypeHoldsItsDataExactly) {
  for (const DataType type : kTypes) {
    const Shape alone{type, ReduceOp::kSum, 0, 1};
    std::vector<std::byte> data(kCount * size_of(type));
    fill_known(alone, 3, data.data(), kCount);
    EXPECT_EQ(count_wrong(alone, 3, data.data(), kCount), 0u) << name_of(type);
    EXPECT_GT(count_wrong(alone, 4, data.data(), kCount), kCount / 2) << name_of(type);
    data[0] ^= std::byte{1};
    EXPECT_EQ(count_wrong(alone, 3, data.data(), kCount), 1u) << name_of(type);
  }
}

TEST(Signs, ATurnedSignAndAnotherMagnitudeAreCounted) {
  for (const DataType type : {DataType::kFloat16, DataType::kFloat32, DataType::kBFloat16}) {
    const Shape alone{type, ReduceOp::kSum, 0, 1};
    std::vector<std::byte> data(kCount * size_of(type));
    fill_signs(alone, 3, data.data(), kCount);
    EXPECT_EQ(count_wrong_signs(alone, 3, data.data(), kCount), 0u) << name_of(type);
    data[size_of(type) - 1] ^= std::byte{0x80};
    EXPECT_EQ(count_wrong_signs(alone, 3, data.data(), kCount), 1u) << name_of(type);
    EXPECT_EQ(count_wrong_signs({type, ReduceOp::kSum, 0, 2}, 3, data.data(), kCount), kCount);
  }
}

TEST(NormalData, HasMeanZeroAndVarianceOneInEveryType) {
  for (const DataType type : {DataType::kFloat16, DataType::kFloat32, DataType::kBFloat16}) {
    constexpr std::size_t kMany = 200000;
    std::vector<std::byte> data(kMany * size_of(type));
    std::vector<double> values(kMany);
    fill_normal({type, ReduceOp::kSum, 1, 2}, 5, data.data(), kMany);
    add_to(type, data.data(), kMany, values.data());
    double sum = 0;
    double squares = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / kMany, 0, 0.02) << name_of(type);
    EXPECT_NEAR(squares / kMany, 1, 0.02) << name_of(type);
  }
}

}  // namespace
}  // namespace onebit::perf
