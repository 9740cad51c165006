// Partitions and chunks cover a buffer exactly once, whatever its count and the number of ranks.

#include "collective/partition.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace onebit::collective {
namespace {

TEST(PartitionPlan, PartitionsCoverTheBufferOnceInOrder) {
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    for (std::size_t count = 0; count <= 2000; ++count) {
      const PartitionPlan plan(count, ranks, 64);
      std::size_t next = 0;
      for (std::size_t owner = 0; owner < ranks; ++owner) {
        const Range range = plan.partition(owner);
        if (range.length != 0) {
          ASSERT_EQ(range.begin, next) << count << " among " << ranks;
          ASSERT_EQ(range.begin % 8, 0U) << "a partition starts at a whole byte of bits";
        }
        ASSERT_LE(range.length, plan.partition_elements());
        next += range.length;
      }
      ASSERT_EQ(next, count) << "among " << ranks;
      ASSERT_EQ(plan.partition_elements() % 8, 0U);
      ASSERT_LT(plan.partition_elements(), (count + ranks - 1) / ranks + 8) << "no larger than it must be";
    }
  }
}

TEST(PartitionPlan, ChunksCoverEachPartitionOnceInOrder) {
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    for (std::size_t count = 0; count <= 2000; count += count < 300 ? 1 : 37) {
      for (const std::size_t chunk : {1, 7, 8, 64, 2048}) {
        const PartitionPlan plan(count, ranks, chunk);
        ASSERT_GE(plan.chunks(), 1U);
        for (std::size_t owner = 0; owner < ranks; ++owner) {
          const Range whole = plan.partition(owner);
          std::size_t next = whole.begin;
          bool ended = false;
          for (std::size_t k = 0; k < plan.chunks(); ++k) {
            const Range range = plan.chunk(owner, k);
            ASSERT_EQ(range.begin, next);
            ASSERT_LE(range.length, chunk);
            ASSERT_FALSE(ended && range.length != 0) << "only a partition's last chunk is short";
            ended = range.length < chunk;
            next += range.length;
          }
          ASSERT_EQ(next, whole.begin + whole.length)
              << count << " among " << ranks << " in chunks of " << chunk;
        }
      }
    }
  }
}

TEST(PartitionPlan, HugeCountsDoNotOverflow) {
  const std::size_t count = (std::size_t{1} << 46) - 3;
  const PartitionPlan plan(count, 7, 1 << 18);
  std::size_t total = 0;
  for (std::size_t owner = 0; owner < 7; ++owner) total += plan.partition(owner).length;
  EXPECT_EQ(total, count);
  const Range last = plan.chunk(6, plan.chunks() - 1);
  EXPECT_EQ(last.begin + last.length, count);
}

}  // namespace
}  // namespace onebit::collective
