// The rules of ONEBIT_COMPRESS and the decision that they are part of.

#include "collective/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace onebit::collective {
namespace {

using ::testing::HasSubstr;
using Reason = Decision::Reason;

/// A call that every rule could match: 1,000,000 floats, sum, tag "layer.3.weight", communicator "dp", 8
/// ranks.
CallFacts usual() {
  CallFacts facts;
  facts.count = 1'000'000;
  facts.type = DataType::kFloat32;
  facts.op = ReduceOp::kSum;
  facts.tag = "layer.3.weight";
  facts.communicator = "dp";
  facts.ranks = 8;
  return facts;
}

Rules rules(std::string_view text) {
  auto parsed = Rules::parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? *parsed : Rules();
}

/// Whether `text` compresses the call; nothing matching counts as no.
bool compresses(std::string_view text, const CallFacts& facts = usual()) {
  const auto match = rules(text).match(facts);
  return match && match->compress;
}

TEST(Rules, AllMatchesEverythingAndNoneNothing) {
  EXPECT_TRUE(compresses("all"));
  EXPECT_FALSE(rules("none").match(usual()));
  EXPECT_FALSE(rules("").match(usual()));
  EXPECT_FALSE(rules(" ; ;").match(usual()));
}

TEST(Rules, SizeComparesTheBufferInBytes) {
  EXPECT_TRUE(compresses("size>=4000000"));
  EXPECT_FALSE(compresses("size>=4000001"));
  EXPECT_TRUE(compresses("size<4000001"));
  EXPECT_FALSE(compresses("size<4000000"));
  EXPECT_TRUE(compresses("size>=3M"));
  EXPECT_FALSE(compresses("size>=4M"));
  CallFacts half = usual();
  half.type = DataType::kFloat16;
  EXPECT_FALSE(compresses("size>=2000001", half));
  EXPECT_TRUE(compresses("size>=2000000", half));
}

TEST(Rules, RanksComparesTheSizeOfTheCommunicator) {
  EXPECT_TRUE(compresses("ranks>=8"));
  EXPECT_FALSE(compresses("ranks>=9"));
  EXPECT_TRUE(compresses("ranks<9"));
  EXPECT_FALSE(compresses("ranks<8"));
}

TEST(Rules, TypeAndOpTakeSeveralWords) {
  EXPECT_TRUE(compresses("type=float"));
  EXPECT_FALSE(compresses("type=half"));
  EXPECT_TRUE(compresses("type=half|float"));
  EXPECT_TRUE(compresses("type=bfloat16 | float"));
  EXPECT_TRUE(compresses("op=sum"));
  EXPECT_FALSE(compresses("op=avg"));
  EXPECT_TRUE(compresses("op=avg|sum"));
}

TEST(Rules, CommAndTagAreGlobs) {
  EXPECT_TRUE(compresses("comm=dp"));
  EXPECT_TRUE(compresses("comm=d*"));
  EXPECT_FALSE(compresses("comm=d"));
  EXPECT_TRUE(compresses("tag=*.weight"));
  EXPECT_TRUE(compresses("tag=layer.?.weight"));
  EXPECT_TRUE(compresses("tag=layer.[0-5].*"));
  EXPECT_FALSE(compresses("tag=layer.[!0-5].*"));
  EXPECT_FALSE(compresses("tag=*.bias"));
  CallFacts path = usual();
  path.tag = "model/encoder/weight";
  EXPECT_TRUE(compresses("tag=model*weight", path)) << "a * matches a slash, too";
}

TEST(Rules, AllConditionsOfARuleMustHold) {
  EXPECT_TRUE(compresses("size>=1M,type=float,comm=dp,ranks>=2"));
  EXPECT_FALSE(compresses("size>=1M,type=half,comm=dp,ranks>=2"));
  EXPECT_FALSE(compresses("all,none"));
  EXPECT_TRUE(compresses("  size>=1M ,  type=float  "));
}

TEST(Rules, TheFirstRuleThatMatchesDecides) {
  EXPECT_FALSE(compresses("!tag=*weight;all"));
  EXPECT_TRUE(compresses("all;!tag=*weight"));
  EXPECT_FALSE(compresses("type=half;! tag=layer.*;all"));
  const Rules three = rules("type=half;!tag=*.bias;size>=1M");
  const auto match = three.match(usual());
  ASSERT_TRUE(match);
  EXPECT_EQ(match->index, 2U);
  EXPECT_EQ(three.text(2), "size>=1M");
  EXPECT_EQ(three.text(1), "!tag=*.bias");
}

TEST(Rules, ARuleThatDoesNotParseIsQuotedWithWhatIsAccepted) {
  for (const char* bad : {"size>>1M", "size=5", "size>=", "size>=1X", "size>=-1", "ranks>=two", "type=int32",
                          "type=double", "type=float|", "type=", "op=max",
                          "op=", "comm=", "tag=", "everything", "!", "all,", "size >= 1M", "All"}) {
    SCOPED_TRACE(bad);
    const std::string text = std::string("tag=good;") + bad + ";all";
    const auto parsed = Rules::parse(text);
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr("ONEBIT_COMPRESS"));
    EXPECT_THAT(parsed.status().message(), HasSubstr(std::string("rule '") + bad + "'"));
    EXPECT_THAT(parsed.status().message(), HasSubstr("accepted"));
  }
}

struct Expectation {
  const char* rules;
  std::uint64_t min_size;
  CallFacts facts;
  bool compress;
  Reason reason;
  const char* words;
};

TEST(Decision, EveryReasonIsGivenInWords) {
  CallFacts untagged = usual();
  untagged.tag = "";
  CallFacts integers = usual();
  integers.type = DataType::kInt32;
  CallFacts doubles = usual();
  doubles.type = DataType::kFloat64;
  CallFacts alone = usual();
  alone.ranks = 1;
  CallFacts small = usual();
  small.count = 1024;
  CallFacts nothing = usual();
  nothing.count = 0;
  const Expectation all[] = {
      {"all", 65536, usual(), true, Reason::kRule, "1bit: rule 'all'"},
      {"!tag=layer*;all", 65536, usual(), false, Reason::kExactRule, "exact: rule '!tag=layer*'"},
      {"type=half", 65536, usual(), false, Reason::kNoRule, "exact: no rule of ONEBIT_COMPRESS matches"},
      {"all", 65536, untagged, false, Reason::kNotTagged, "exact: not tagged"},
      {"all", 65536, integers, false, Reason::kType, "exact: int32 is not a type that is compressed"},
      {"all", 65536, doubles, false, Reason::kType, "exact: double is not a type that is compressed"},
      {"all", 65536, alone, false, Reason::kOneRank, "exact: the communicator has one rank"},
      {"all", 65536, small, false, Reason::kTooSmall,
       "exact: 4096 bytes are fewer than ONEBIT_MIN_SIZE=65536"},
      {"all", 0, nothing, false, Reason::kEmpty, "exact: there is nothing to reduce"},
      {"all", 4096, small, true, Reason::kRule, "1bit: rule 'all'"},
      {"all", 0, small, true, Reason::kRule, "1bit: rule 'all'"},
  };
  for (const Expectation& each : all) {
    SCOPED_TRACE(each.words);
    const Rules parsed = rules(each.rules);
    const Decision decision = decide(parsed, each.min_size, each.facts);
    EXPECT_EQ(decision.compress, each.compress);
    EXPECT_EQ(decision.reason, each.reason);
    EXPECT_EQ(explain(decision, parsed, each.min_size, each.facts), each.words);
  }
}

}  // namespace
}  // namespace onebit::collective
