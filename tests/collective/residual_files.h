// Stores of residuals with known contents, and their files.
//
// Threads: any, on different directories.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "collective/residual_file.h"
#include "support/random.h"
#include "support/temporary_directory.h"

namespace onebit::collective {

using onebit::testing::Random;
using onebit::testing::TemporaryDirectory;

inline void fill(ResidualStore& store, std::string_view tag, std::size_t count, ReduceOp op,
                 DataType type = DataType::kFloat32) {
  auto residual = store.get(tag, count, type, op);
  ASSERT_TRUE(residual.ok());
  Random random(store.rank() * 1000 + count + tag.size());
  for (float& x : (*residual)->worker_error.span()) x = random.unit();
  for (float& x : (*residual)->owner_error.span()) x = random.unit();
}

/// Three tags of other shapes, one shorter than there are bytes for all owners.
inline ResidualStore filled(std::size_t rank, std::size_t ranks) {
  ResidualStore store(rank, ranks);
  fill(store, "weight", 1003, ReduceOp::kAvg);
  fill(store, "bias", 5, ReduceOp::kSum, DataType::kBFloat16);
  fill(store, "a tag/with [odd] letters\n", 64, ReduceOp::kSum);
  return store;
}

inline bool equal(const AlignedBuffer<float>& a, const AlignedBuffer<float>& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}
inline void expect_equal(const ResidualStore& a, const ResidualStore& b) {
  ASSERT_EQ(a.entries().size(), b.entries().size());
  for (const auto& [tag, residual] : a.entries()) {
    const auto other = b.entries().find(tag);
    ASSERT_NE(other, b.entries().end()) << tag;
    EXPECT_EQ(residual.count, other->second.count);
    EXPECT_EQ(residual.type, other->second.type);
    EXPECT_EQ(residual.op, other->second.op);
    EXPECT_TRUE(equal(residual.worker_error, other->second.worker_error)) << tag;
    EXPECT_TRUE(equal(residual.owner_error, other->second.owner_error)) << tag;
  }
}

inline std::string file_of(const TemporaryDirectory& directory, std::size_t rank, std::size_t ranks) {
  return formatted("{}/dp.rank-{}-of-{}.residuals", directory.path(), rank, ranks);
}

constexpr SaveMoment kMoment{11, 22};

inline void save_all(const TemporaryDirectory& directory, std::size_t ranks,
                     const SaveMoment& moment = kMoment) {
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Status status = save_residuals(filled(rank, ranks), "dp", directory.path(), moment);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace onebit::collective
