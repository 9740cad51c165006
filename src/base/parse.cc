#include "base/parse.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

namespace onebit {

bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

Result<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    return Status::error(Code::kInvalidArgument, "a whole number from {} to {}", low, high);
  }
  return value;
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t factor = 1;
  std::string_view digits = text;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        factor = std::uint64_t{1} << 10;
        break;
      case 'm':
      case 'M':
        factor = std::uint64_t{1} << 20;
        break;
      case 'g':
      case 'G':
        factor = std::uint64_t{1} << 30;
        break;
      default:
        break;
    }
    if (factor != 1) digits.remove_suffix(1);
  }
  const auto value = parse_unsigned(digits, 0, std::numeric_limits<std::uint64_t>::max());
  if (!value.ok() || *value > (std::uint64_t{1} << 60) / factor) {
    return Status(Code::kInvalidArgument, "a whole number, with K, M or G if you like, up to 2^60");
  }
  return *value * factor;
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(unit_at);
  const double factor = unit == "ms" ? 1 : (unit.empty() || unit == "s") ? 1000 : unit == "min" ? 60'000 : 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + unit_at, value);
  const double milliseconds = value * factor;
  if (error != std::errc{} || end != text.data() + unit_at || !(milliseconds >= 1) || milliseconds > 1e10) {
    return Status(Code::kInvalidArgument, "a time above 0 in seconds, or with a unit: ms, s, min");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
}

Result<std::uint32_t> parse_block(std::string_view text) {
  if (same_word(text, "whole")) return std::uint32_t{0};
  const auto value = parse_size(text);
  if (!value.ok() || *value < 256 || *value > 65536 || !std::has_single_bit(*value)) {
    return Status(Code::kInvalidArgument, "whole, or a power of two from 256 to 65536");
  }
  return static_cast<std::uint32_t>(*value);
}

}  // namespace onebit
