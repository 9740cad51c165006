// The decision which allreduces are compressed: the rules of ONEBIT_COMPRESS, and the tests that come before
// them.
//
// The grammar is in docs/settings.md. A decision uses only what is equal on all ranks. Value types; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace onebit::collective {

/// What a decision may look at.
struct CallFacts {
  std::size_t count = 0;
  DataType type{};
  ReduceOp op{};
  std::string_view tag;
  std::string_view communicator;
  std::size_t ranks = 1;
};

class Rules {
 public:
  /// An error quotes the rule and says what is accepted.
  static Result<Rules> parse(std::string_view text);
  /// The first matching rule: its index and whether it compresses. Nothing when no rule matches.
  struct Match {
    std::size_t index;
    bool compress;
  };
  std::optional<Match> match(const CallFacts& facts) const;
  /// The rule as it was written.
  std::string_view text(std::size_t index) const { return rules_[index].text; }

 private:
  struct Condition {
    enum class Kind : std::uint8_t {
      kAll,
      kNone,
      kSizeFrom,
      kSizeBelow,
      kRanksFrom,
      kRanksBelow,
      kType,
      kOp,
      kComm,
      kTag
    };
    Kind kind{};
    std::uint64_t number = 0;
    std::vector<std::string> words;
    bool holds(const CallFacts& facts) const;
  };
  struct Rule {
    std::string text;
    bool compress = true;
    std::vector<Condition> conditions;
  };
  static Result<Condition> parse_condition(std::string_view text);
  std::vector<Rule> rules_;
};

/// Why a call goes the way it goes.
struct Decision {
  enum class Reason : std::uint8_t {
    kRule,
    kExactRule,
    kNoRule,
    kOneRank,
    kNotTagged,
    kType,
    kEmpty,
    kTooSmall
  };
  bool compress = false;
  Reason reason{};
  std::size_t rule = 0;
};

Decision decide(const Rules& rules, std::uint64_t min_size, const CallFacts& facts);
/// "1bit: rule 'all'", "exact: not tagged" and the like.
std::string explain(const Decision& decision, const Rules& rules, std::uint64_t min_size,
                    const CallFacts& facts);

}  // namespace onebit::collective
