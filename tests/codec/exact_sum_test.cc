// The exact reduction: right for sums that are exact whatever the order, the same in every implementation, in
// place too.
#include <gtest/gtest.h>

#include <vector>

#include "codec/kernels.h"
#include "codec/reference.h"
#include "test_data.h"

namespace onebit::codec::test {
namespace {

constexpr DataType kAllTypes[] = {DataType::kInt32,   DataType::kInt64,   DataType::kFloat16,
                                  DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16};
constexpr std::size_t kWorlds[] = {1, 2, 3, 4, 7, 8};

/// Small whole numbers: their sums are exact in every type. Value i of rank r.
int small(std::size_t r, std::size_t i) {
  return static_cast<int>((i * 7 + r * 3) % 31) - 15;
}

void put(DataType type, const Buffer& buffer, std::size_t i, int value) {
  switch (type) {
    case DataType::kInt32:
      buffer.as<std::int32_t>()[i] = value;
      break;
    case DataType::kInt64:
      buffer.as<std::int64_t>()[i] = value;
      break;
    case DataType::kFloat16:
      buffer.as<std::uint16_t>()[i] = float_to_half(static_cast<float>(value));
      break;
    case DataType::kBFloat16:
      buffer.as<std::uint16_t>()[i] = float_to_bfloat16(static_cast<float>(value));
      break;
    case DataType::kFloat32:
      buffer.as<float>()[i] = static_cast<float>(value);
      break;
    case DataType::kFloat64:
      buffer.as<double>()[i] = value;
      break;
  }
}

double get(DataType type, const Buffer& buffer, std::size_t i) {
  switch (type) {
    case DataType::kInt32:
      return buffer.as<std::int32_t>()[i];
    case DataType::kInt64:
      return static_cast<double>(buffer.as<std::int64_t>()[i]);
    case DataType::kFloat16:
      return half_to_float(buffer.as<std::uint16_t>()[i]);
    case DataType::kBFloat16:
      return bfloat16_to_float(buffer.as<std::uint16_t>()[i]);
    case DataType::kFloat32:
      return buffer.as<float>()[i];
    case DataType::kFloat64:
      return buffer.as<double>()[i];
  }
  return 0;
}

std::vector<const void*> addresses(const std::vector<Buffer>& pieces) {
  std::vector<const void*> list;
  for (const Buffer& piece : pieces) list.push_back(piece.data());
  return list;
}

TEST(ExactSum, IsRightForEveryTypeWorldSizeLengthAndAlignment) {
  for (DataType type : kAllTypes) {
    for (std::size_t world : kWorlds) {
      for (std::size_t n : {0u, 1u, 2u, 3u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 1000u}) {
        std::vector<Buffer> pieces;
        for (std::size_t r = 0; r < world; ++r) {
          pieces.emplace_back(n * size_of(type), (r % 3) * size_of(type));
          for (std::size_t i = 0; i < n; ++i) put(type, pieces[r], i, small(r, i));
        }
        const Buffer out(n * size_of(type), size_of(type));
        exact_sum(type, ReduceOp::kSum, addresses(pieces), n, out.data());
        for (std::size_t i = 0; i < n; ++i) {
          int expected = 0;
          for (std::size_t r = 0; r < world; ++r) expected += small(r, i);
          ASSERT_EQ(get(type, out, i), expected) << onebit::name_of(type) << " W=" << world << " n=" << n;
        }
      }
    }
  }
}

TEST(ExactSum, AveragesAPowerOfTwoOfRanksExactly) {
  for (DataType type : kAllTypes) {
    if (!is_floating(type)) continue;
    std::vector<Buffer> pieces;
    for (std::size_t r = 0; r < 4; ++r) {
      pieces.emplace_back(100 * size_of(type));
      for (std::size_t i = 0; i < 100; ++i) put(type, pieces[r], i, 4 * static_cast<int>(r + i % 5));
    }
    const Buffer out(100 * size_of(type));
    exact_sum(type, ReduceOp::kAvg, addresses(pieces), 100, out.data());
    for (std::size_t i = 0; i < 100; ++i)
      ASSERT_EQ(get(type, out, i), 6.0 + 4.0 * static_cast<double>(i % 5));
  }
}

TEST(ExactSum, WrapsIntegers) {
  const std::vector<std::int32_t> a32(40, std::numeric_limits<std::int32_t>::max()), b32(40, 1);
  std::vector<std::int32_t> out32(40);
  const void* const pieces32[] = {a32.data(), b32.data()};
  exact_sum(DataType::kInt32, ReduceOp::kSum, pieces32, 40, out32.data());
  for (std::int32_t v : out32) ASSERT_EQ(v, std::numeric_limits<std::int32_t>::min());
  const std::vector<std::int64_t> a64(40, std::numeric_limits<std::int64_t>::max()), b64(40, 1);
  std::vector<std::int64_t> out64(40);
  const void* const pieces64[] = {a64.data(), b64.data()};
  exact_sum(DataType::kInt64, ReduceOp::kSum, pieces64, 40, out64.data());
  for (std::int64_t v : out64) ASSERT_EQ(v, std::numeric_limits<std::int64_t>::min());
}

/// Every implementation against the reference on arbitrary numbers: the order of the sum and its rounding are
/// fixed. A NaN of fp32 or fp64 may be any; of fp16 and bf16 it is the codec's.
TEST(ExactSum, IsTheSameInEveryImplementation) {
  for (const Kernels& kernels : all_kernels()) {
    for (DataType type : kTypes) {
      for (Kind kind : kKinds) {
        for (std::size_t world : kWorlds) {
          const std::size_t n = 777;
          std::vector<Buffer> pieces;
          for (std::size_t r = 0; r < world; ++r) pieces.push_back(numbers(type, kind, n, r));
          for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
            const Buffer expected(n * size_of(type)), found(n * size_of(type));
            reference_kernels().exact_sum(type, op, addresses(pieces), n, expected.data());
            kernels.exact_sum(type, op, addresses(pieces), n, found.data());
            if (found == expected) continue;
            for (std::size_t i = 0; i < n; ++i) {
              const double e = get(type, expected, i), f = get(type, found, i);
              ASSERT_TRUE(e == f || (type == DataType::kFloat32 && std::isnan(e) && std::isnan(f)))
                  << kernels.implementation.name << " " << onebit::name_of(type) << " " << name_of(kind)
                  << " " << i;
            }
          }
        }
      }
    }
  }
}

TEST(ExactSum, RoundsHalvesOnceAndReadsEveryPattern) {
  for (const Kernels& kernels : all_kernels()) {
    for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
      const std::size_t n = 65536;
      Buffer a(2 * n), b(2 * n), c(2 * n);
      SplitMix64 random(1);
      for (std::size_t i = 0; i < n; ++i) {
        a.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
        b.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(random.next());
        c.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(random.next());
      }
      const std::vector<const void*> pieces = {a.data(), b.data(), c.data()};
      Buffer out(2 * n);
      kernels.exact_sum(type, ReduceOp::kSum, pieces, n, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        const auto f = [&](const Buffer& x) { return static_cast<float>(get(type, x, i)); };
        const float sum = f(a) + f(b) + f(c);
        const std::uint16_t expected =
            type == DataType::kFloat16 ? float_to_half(sum) : float_to_bfloat16(sum);
        ASSERT_EQ(out.as<std::uint16_t>()[i], expected) << kernels.implementation.name << " " << i;
      }
    }
  }
}

TEST(ExactSum, MayWriteOverAnyOneOfItsPieces) {
  for (DataType type : kAllTypes) {
    for (std::size_t place : {0u, 1u, 2u}) {
      const std::size_t n = 333;
      std::vector<Buffer> pieces;
      for (std::size_t r = 0; r < 3; ++r) {
        pieces.emplace_back(n * size_of(type));
        for (std::size_t i = 0; i < n; ++i) put(type, pieces[r], i, small(r, i));
      }
      exact_sum(type, ReduceOp::kSum, addresses(pieces), n, pieces[place].data());
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(get(type, pieces[place], i), small(0, i) + small(1, i) + small(2, i))
            << onebit::name_of(type);
      }
    }
  }
}

}  // namespace
}  // namespace onebit::codec::test
