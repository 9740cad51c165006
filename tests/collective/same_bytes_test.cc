// The compressed allreduce over another transport, which the environment names (ONEBIT_TRANSPORT), gives the
// same bytes as over TCP: each result of several rounds, so the residuals, too. Run where the transport can
// be.
#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace onebit::testing {
namespace {

constexpr int kRounds = 3;

struct Case {
  const char* name;
  onebitDataType_t type;
  std::size_t element_bytes;
  std::size_t count;
  onebitRedOp_t op;
  const char* settings;
};
constexpr Case kCases[] = {
    {"one_element", onebitFloat32, 4, 1, onebitSum, ""},
    {"fp32", onebitFloat32, 4, 300'007, onebitSum, ""},
    {"fp32_mean_of_whole", onebitFloat32, 4, 100'003, onebitAvg, "ONEBIT_BLOCK=whole\nONEBIT_SCALE=mean\n"},
    {"fp16", onebitFloat16, 2, 100'003, onebitAvg, ""},
    {"bf16_small_blocks", onebitBfloat16, 2, 70'001, onebitSum, "ONEBIT_BLOCK=256\n"},
};

/// Finite numbers of moderate size in any of the types: the exponent's upper bits are those of 1.
std::vector<std::byte> input(const Case& test, int rank, int round) {
  std::vector<std::byte> bytes(test.count * test.element_bytes);
  Random random(static_cast<std::uint64_t>(rank * 100 + round + 1));
  for (std::size_t i = 0; i < test.count; ++i) {
    const std::uint64_t bits = random.bits();
    if (test.type == onebitFloat32) {
      const float value = static_cast<float>(static_cast<std::int64_t>(bits) >> 44) / (1 << 19);
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else {
      const auto exponent = static_cast<std::uint16_t>(test.type == onebitFloat16 ? 0x3800 : 0x3F00);
      const auto value = static_cast<std::uint16_t>((bits & 0x8000) | exponent | (bits >> 16 & 0xFF));
      std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
  }
  return bytes;
}

/// The results of all rounds, the same on all ranks.
std::vector<std::byte> results(const Case& test, int ranks, const std::string& transport) {
  std::vector<std::vector<std::byte>> of_ranks(static_cast<std::size_t>(ranks));
  run_ranks(ranks,
            [&](int rank, onebitComm_t comm) {
              std::vector<std::byte>& all = of_ranks[static_cast<std::size_t>(rank)];
              for (int round = 0; round < kRounds; ++round) {
                const auto x = input(test, rank, round);
                std::vector<std::byte> y(x.size());
                ASSERT_TRUE(succeeded(
                    onebitAllReduce(x.data(), y.data(), test.count, test.type, test.op, "t", comm, nullptr)));
                all.insert(all.end(), y.begin(), y.end());
              }
            },
            {std::string(test.settings) + "ONEBIT_MIN_SIZE=0\nONEBIT_TRANSPORT=" + transport + "\n"});
  for (const auto& other : of_ranks) EXPECT_EQ(other, of_ranks.front()) << transport;
  return of_ranks.front();
}

class SameBytes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SameBytes, ::testing::Values(2, 3));

TEST_P(SameBytes, OverThisTransportAsOverTcp) {
  const char* const transport = std::getenv("ONEBIT_TRANSPORT");
  ASSERT_NE(transport, nullptr) << "names the transport to compare with tcp";
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.name);
    const auto due = results(test, GetParam(), "tcp");
    EXPECT_EQ(due.size(), kRounds * test.count * test.element_bytes);
    EXPECT_EQ(results(test, GetParam(), transport), due);
  }
}

}  // namespace
}  // namespace onebit::testing
