// Tags by argument, by scope and by registered buffer, seen through onebitExplain and through the calls that
// they compress.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace onebit::testing {
namespace {

using ::testing::HasSubstr;

/// A rule a tag, so that the explanation tells which tag the call had.
constexpr const char* kTell =
    "ONEBIT_MIN_SIZE=0\nONEBIT_COMPRESS=tag=argument;tag=outer;tag=outer#1;tag=outer#2;tag=inner;tag=inner#1;"
    "tag=buffer;tag=buffer+4;tag=buffer+400;tag=other;!all";

class Tags : public ::testing::Test {
 protected:
  static std::string decision(onebitComm_t comm, const char* tag, const void* buffer) {
    std::array<char, 256> text{};
    EXPECT_TRUE(
        succeeded(onebitExplain(buffer, 10, onebitFloat32, onebitSum, tag, comm, text.data(), text.size())));
    return text.data();
  }
  static void reduce(onebitComm_t comm, void* buffer, const char* tag = nullptr) {
    ASSERT_TRUE(succeeded(onebitAllReduce(buffer, buffer, 10, onebitFloat32, onebitSum, tag, comm, nullptr)));
  }
  static std::uint64_t compressed(onebitComm_t comm) {
    onebitStats_t stats{};
    stats.size = sizeof stats;
    EXPECT_TRUE(succeeded(onebitCommGetStats(comm, &stats)));
    return stats.compressed_calls;
  }
  static std::size_t memory(onebitComm_t comm, const char* tag) {
    std::size_t bytes = 0;
    EXPECT_TRUE(succeeded(onebitResidualMemory(comm, tag, &bytes)));
    return bytes;
  }
};

TEST_F(Tags, AnUntaggedCallIsExact) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              EXPECT_EQ(decision(comm, nullptr, x.data()), "exact: not tagged");
              EXPECT_EQ(decision(comm, "", x.data()), "exact: not tagged");
              reduce(comm, x.data());
              EXPECT_EQ(compressed(comm), 0U);
            },
            {kTell});
}

TEST_F(Tags, AnArgumentWinsOverScopeAndBuffer) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              ASSERT_TRUE(succeeded(onebitTagBuffer(x.data(), 40, "buffer")));
              ASSERT_TRUE(succeeded(onebitScopeBegin("outer")));
              EXPECT_EQ(decision(comm, "argument", x.data()), "1bit: rule 'tag=argument'");
              EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer'");
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
              EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=buffer'");
              ASSERT_TRUE(succeeded(onebitUntagBuffer(x.data())));
              EXPECT_EQ(decision(comm, nullptr, x.data()), "exact: not tagged");
              // Registered ranges are the process's: the other rank's buffer is another one.
            },
            {kTell});
}

TEST_F(Tags, CallsInAScopeAreNumberedAndCompressed) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              for (int step = 0; step < 2; ++step) {
                ASSERT_TRUE(succeeded(onebitScopeBegin("outer")));
                EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer'");
                EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer'")
                    << "explaining does not count";
                reduce(comm, x.data());
                EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer#1'");
                reduce(comm, x.data());
                reduce(comm, x.data(), "argument");
                EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer#2'")
                    << "a call with a tag does not count";
                ASSERT_TRUE(succeeded(onebitScopeEnd()));
              }
              EXPECT_EQ(compressed(comm), 6U);
              EXPECT_GT(memory(comm, "outer"), 0U);
              EXPECT_GT(memory(comm, "outer#1"), 0U);
              EXPECT_EQ(memory(comm, "outer#2"), 0U);
              EXPECT_EQ(memory(comm, nullptr),
                        memory(comm, "outer") + memory(comm, "outer#1") + memory(comm, "argument"));
            },
            {kTell});
}

TEST_F(Tags, ScopesNestAndTheInnerOneCounts) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              ASSERT_TRUE(succeeded(onebitScopeBegin("outer")));
              reduce(comm, x.data());
              ASSERT_TRUE(succeeded(onebitScopeBegin("inner")));
              EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=inner'");
              reduce(comm, x.data());
              EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=inner#1'");
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
              EXPECT_EQ(decision(comm, nullptr, x.data()), "1bit: rule 'tag=outer#1'");
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
              EXPECT_EQ(decision(comm, nullptr, x.data()), "exact: not tagged");
            },
            {kTell});
}

TEST_F(Tags, AScopeIsItsThreadsOwn) {
  run_ranks(1,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              ASSERT_TRUE(succeeded(onebitScopeBegin("outer")));
              std::thread([&] {
                EXPECT_EQ(decision(comm, nullptr, x.data()), "exact: not tagged");
                EXPECT_EQ(onebitScopeEnd(), onebitInvalidUsage);
              }).join();
              EXPECT_EQ(decision(comm, nullptr, x.data()), "exact: the communicator has one rank");
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
              EXPECT_EQ(onebitScopeEnd(), onebitInvalidUsage);
              EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("onebitScopeBegin"));
            },
            {kTell});
}

TEST_F(Tags, ABufferHasItsTagWithTheOffset) {
  static std::array<std::array<float, 120>, 2> buffers{};  // a rank each; ranges are the process's
  run_ranks(2,
            [](int rank, onebitComm_t comm) {
              float* const base = buffers[static_cast<std::size_t>(rank)].data();
              ASSERT_TRUE(succeeded(onebitTagBuffer(base, 440, "buffer")));
              EXPECT_EQ(decision(comm, nullptr, base), "1bit: rule 'tag=buffer'");
              EXPECT_EQ(decision(comm, nullptr, base + 1), "1bit: rule 'tag=buffer+4'");
              EXPECT_EQ(decision(comm, nullptr, base + 100), "1bit: rule 'tag=buffer+400'");
              EXPECT_EQ(decision(comm, nullptr, base + 110), "exact: not tagged") << "behind its end";
              reduce(comm, base + 100);
              EXPECT_EQ(compressed(comm), 1U);
              EXPECT_GT(memory(comm, "buffer+400"), 0U);
              ASSERT_TRUE(succeeded(onebitUntagBuffer(base)));
              reduce(comm, base + 100);
              EXPECT_EQ(compressed(comm), 1U);
            },
            {kTell});
}

TEST_F(Tags, OverlappingRangesAreRefusedAndAdjacentOnesNot) {
  std::vector<char> memory(1000);
  char* const base = memory.data() + 100;
  ASSERT_TRUE(succeeded(onebitTagBuffer(base, 100, "buffer")));
  for (const auto& [offset, bytes] : {std::pair<int, std::size_t>{0, 100},
                                      {0, 1},
                                      {99, 1},
                                      {99, 100},
                                      {-1, 2},
                                      {-50, 500},
                                      {-100, 101},
                                      {50, 10}}) {
    EXPECT_EQ(onebitTagBuffer(base + offset, bytes, "other"), onebitInvalidUsage) << offset << " " << bytes;
    EXPECT_THAT(onebitGetLastError(nullptr), HasSubstr("'buffer'"));
  }
  EXPECT_TRUE(succeeded(onebitTagBuffer(base + 100, 10, "other")));
  EXPECT_TRUE(succeeded(onebitTagBuffer(base - 100, 100, "other")));
  EXPECT_EQ(onebitUntagBuffer(base + 1), onebitInvalidUsage);
  for (char* start : {base, base + 100, base - 100}) EXPECT_TRUE(succeeded(onebitUntagBuffer(start)));
  EXPECT_EQ(onebitUntagBuffer(base), onebitInvalidUsage);
  EXPECT_TRUE(succeeded(onebitTagBuffer(base + 50, 100, "again")));
  EXPECT_TRUE(succeeded(onebitUntagBuffer(base + 50)));
}

TEST_F(Tags, BadRangesAndBadTagsAreInvalidArguments) {
  char byte = 0;
  const std::string longest(255, 't');
  const std::string too_long(256, 't');
  EXPECT_EQ(onebitTagBuffer(nullptr, 1, "t"), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(&byte, 1, nullptr), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(&byte, 1, ""), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(&byte, 0, "t"), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(&byte, SIZE_MAX, "t"), onebitInvalidArgument);
  EXPECT_EQ(onebitTagBuffer(&byte, 1, too_long.c_str()), onebitInvalidArgument);
  EXPECT_EQ(onebitScopeBegin(nullptr), onebitInvalidArgument);
  EXPECT_EQ(onebitScopeBegin(""), onebitInvalidArgument);
  EXPECT_EQ(onebitScopeBegin(too_long.c_str()), onebitInvalidArgument);
  EXPECT_TRUE(succeeded(onebitTagBuffer(&byte, 1, longest.c_str())));
  EXPECT_TRUE(succeeded(onebitUntagBuffer(&byte)));
  EXPECT_TRUE(succeeded(onebitScopeBegin(longest.c_str())));
  EXPECT_TRUE(succeeded(onebitScopeEnd()));
}

TEST_F(Tags, TheLongestTagWorksInACallAndALongerOneIsRefused) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              reduce(comm, x.data(), std::string(255, 't').c_str());
              EXPECT_EQ(compressed(comm), 1U);
              EXPECT_EQ(onebitAllReduce(x.data(), x.data(), 10, onebitFloat32, onebitSum,
                                        std::string(256, 't').c_str(), comm, nullptr),
                        onebitInvalidArgument);
              // The second call of a scope of the longest tag has a longer one.
              ASSERT_TRUE(succeeded(onebitScopeBegin(std::string(255, 's').c_str())));
              reduce(comm, x.data());
              reduce(comm, x.data());
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
              EXPECT_EQ(compressed(comm), 3U);
            },
            {"ONEBIT_MIN_SIZE=0"});
}

TEST_F(Tags, AnExplanationIsCutToItsRoom) {
  run_ranks(1, [](int, onebitComm_t comm) {
    float x = 0;
    std::array<char, 8> text{};
    EXPECT_TRUE(
        succeeded(onebitExplain(&x, 1, onebitFloat32, onebitSum, "t", comm, text.data(), text.size())));
    EXPECT_STREQ(text.data(), "exact: ");
    text.fill('x');
    EXPECT_TRUE(succeeded(onebitExplain(&x, 1, onebitFloat32, onebitSum, "t", comm, text.data(), 0)));
    EXPECT_EQ(text[0], 'x');
    EXPECT_EQ(onebitExplain(&x, 1, onebitFloat32, onebitSum, "t", comm, nullptr, 8), onebitInvalidArgument);
    EXPECT_EQ(onebitExplain(&x, 1, static_cast<onebitDataType_t>(99), onebitSum, "t", comm, text.data(), 8),
              onebitInvalidArgument);
  });
}

TEST_F(Tags, ACallThatWasRefusedDoesNotMoveItsScopeOn) {
  run_ranks(2,
            [](int, onebitComm_t comm) {
              std::vector<float> x(10, 1.0F);
              ASSERT_TRUE(succeeded(onebitScopeBegin("outer")));
              EXPECT_EQ(onebitAllReduce(x.data(), x.data() + 1, 9, onebitFloat32, onebitSum, nullptr, comm,
                                        nullptr),
                        onebitInvalidArgument);
              onebitComm_t aborted = nullptr;
              onebitUniqueId id;
              ASSERT_TRUE(succeeded(onebitGetUniqueId(&id)));
              ASSERT_TRUE(succeeded(onebitCommInitRank(&aborted, 1, id, 0)));
              ASSERT_TRUE(succeeded(onebitCommAbort(aborted)));
              EXPECT_EQ(onebitAllReduce(x.data(), x.data(), 10, onebitFloat32, onebitSum, nullptr, aborted,
                                        nullptr),
                        onebitAborted);
              EXPECT_TRUE(succeeded(onebitCommDestroy(aborted)));
              EXPECT_THAT(decision(comm, nullptr, x.data()), HasSubstr("tag=outer'"));
              reduce(comm, x.data());
              EXPECT_THAT(decision(comm, nullptr, x.data()), HasSubstr("tag=outer#1"));
              ASSERT_TRUE(succeeded(onebitScopeEnd()));
            },
            {kTell});
}

TEST_F(Tags, AnExplanationRefusesWhatTheCallRefuses) {
  run_ranks(1, [](int, onebitComm_t comm) {
    std::array<char, 256> text{};
    const float x = 0;
    const auto explain = [&](std::size_t count, const std::string& tag) {
      return onebitExplain(&x, count, onebitFloat32, onebitSum, tag.c_str(), comm, text.data(), text.size());
    };
    EXPECT_EQ(explain(std::size_t{1} << 62, "g"), onebitInvalidArgument);
    EXPECT_EQ(explain(1, std::string(300, 't')), onebitInvalidArgument);
  });
}

}  // namespace
}  // namespace onebit::testing
