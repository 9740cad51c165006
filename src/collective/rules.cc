#include "collective/rules.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/settings.h"

namespace onebit::collective {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool matches_glob(const std::string& pattern, std::string_view text) {
  return fnmatch(pattern.c_str(), std::string(text).c_str(), 0) == 0;
}

}  // namespace

bool Rules::Condition::holds(const CallFacts& facts) const {
  const std::uint64_t bytes = facts.count * size_of(facts.type);
  switch (kind) {
    case Kind::kAll:
      return true;
    case Kind::kNone:
      return false;
    case Kind::kSizeFrom:
      return bytes >= number;
    case Kind::kSizeBelow:
      return bytes < number;
    case Kind::kRanksFrom:
      return facts.ranks >= number;
    case Kind::kRanksBelow:
      return facts.ranks < number;
    case Kind::kType:
      return std::any_of(words.begin(), words.end(),
                         [&](const auto& w) { return parse_data_type(w) == facts.type; });
    case Kind::kOp:
      return std::any_of(words.begin(), words.end(),
                         [&](const auto& w) { return parse_reduce_op(w) == facts.op; });
    case Kind::kComm:
      return matches_glob(words.front(), facts.communicator);
    case Kind::kTag:
      return matches_glob(words.front(), facts.tag);
  }
  return false;
}

Result<Rules::Condition> Rules::parse_condition(std::string_view text) {
  const auto refuse = [&](std::string_view accepted) {
    return Status::error(Code::kInvalidArgument, "condition '{}': accepted is {}", text, accepted);
  };
  using Kind = Condition::Kind;
  Condition condition;
  if (text == "all" || text == "none") {
    condition.kind = text == "all" ? Kind::kAll : Kind::kNone;
    return condition;
  }
  const auto starts = [&](std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; };
  struct Comparison {
    std::string_view prefix;
    Kind kind;
  };
  for (const Comparison& c :
       {Comparison{"size>=", Kind::kSizeFrom}, Comparison{"size<", Kind::kSizeBelow},
        Comparison{"ranks>=", Kind::kRanksFrom}, Comparison{"ranks<", Kind::kRanksBelow}}) {
    if (!starts(c.prefix)) continue;
    const auto number = parse_size(text.substr(c.prefix.size()));
    if (!number.ok()) return refuse(number.status().message());
    condition.kind = c.kind;
    condition.number = *number;
    return condition;
  }
  const auto equals = text.find('=');
  const std::string_view key = text.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : trim(text.substr(equals + 1));
  if (value.empty()) {
    return refuse(
        "all, none, size>=BYTES, size<BYTES, ranks>=N, ranks<N, type=T, op=O, comm=GLOB or tag=GLOB");
  }
  if (key == "comm" || key == "tag") {
    condition.kind = key == "comm" ? Kind::kComm : Kind::kTag;
    condition.words.emplace_back(value);
    return condition;
  }
  for (const std::string_view word : split(value, '|')) condition.words.emplace_back(word);
  if (key == "type") {
    condition.kind = Kind::kType;
    for (const auto& word : condition.words) {
      const auto type = parse_data_type(word);
      if (!type || !is_compressible(*type)) return refuse("float, half or bfloat16, several with |");
    }
    return condition;
  }
  if (key == "op") {
    condition.kind = Kind::kOp;
    for (const auto& word : condition.words) {
      if (!parse_reduce_op(word)) return refuse("sum or avg, both with |");
    }
    return condition;
  }
  return refuse("all, none, size>=BYTES, size<BYTES, ranks>=N, ranks<N, type=T, op=O, comm=GLOB or tag=GLOB");
}

Result<Rules> Rules::parse(std::string_view text) {
  Rules rules;
  for (std::string_view part : split(text, ';')) {
    if (part.empty()) continue;
    Rule rule;
    rule.text = std::string(part);
    if (part.front() == '!') {
      rule.compress = false;
      part = trim(part.substr(1));
    }
    for (const std::string_view condition : split(part, ',')) {
      auto parsed = parse_condition(condition);
      if (!parsed.ok())
        return parsed.status().with_context(formatted("ONEBIT_COMPRESS, rule '{}'", rule.text));
      rule.conditions.push_back(std::move(*parsed));
    }
    rules.rules_.push_back(std::move(rule));
  }
  return rules;
}

std::optional<Rules::Match> Rules::match(const CallFacts& facts) const {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const auto& conditions = rules_[i].conditions;
    if (std::all_of(conditions.begin(), conditions.end(), [&](const auto& c) { return c.holds(facts); })) {
      return Match{i, rules_[i].compress};
    }
  }
  return std::nullopt;
}

Decision decide(const Rules& rules, std::uint64_t min_size, const CallFacts& facts) {
  using Reason = Decision::Reason;
  if (facts.tag.empty()) return {false, Reason::kNotTagged, 0};
  if (!is_compressible(facts.type)) return {false, Reason::kType, 0};
  if (facts.ranks == 1) return {false, Reason::kOneRank, 0};
  if (facts.count == 0) return {false, Reason::kEmpty, 0};
  if (facts.count * size_of(facts.type) < min_size) return {false, Reason::kTooSmall, 0};
  const auto match = rules.match(facts);
  if (!match) return {false, Reason::kNoRule, 0};
  return {match->compress, match->compress ? Reason::kRule : Reason::kExactRule, match->index};
}

std::string explain(const Decision& decision, const Rules& rules, std::uint64_t min_size,
                    const CallFacts& facts) {
  using Reason = Decision::Reason;
  switch (decision.reason) {
    case Reason::kRule:
      return formatted("1bit: rule '{}'", rules.text(decision.rule));
    case Reason::kExactRule:
      return formatted("exact: rule '{}'", rules.text(decision.rule));
    case Reason::kNoRule:
      return "exact: no rule of ONEBIT_COMPRESS matches";
    case Reason::kOneRank:
      return "exact: the communicator has one rank";
    case Reason::kNotTagged:
      return "exact: not tagged";
    case Reason::kType:
      return formatted("exact: {} is not a type that is compressed", name_of(facts.type));
    case Reason::kEmpty:
      return "exact: there is nothing to reduce";
    case Reason::kTooSmall:
      return formatted("exact: {} bytes are fewer than ONEBIT_MIN_SIZE={}", facts.count * size_of(facts.type),
                       min_size);
  }
  return "exact";
}

}  // namespace onebit::collective
