// Readers of single values: of settings, rules and command lines. A failure's message says what is accepted.
//
// Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace onebit {

/// Whether two words are equal but for the case of ASCII letters: settings read theirs so, as NCCL does.
bool same_word(std::string_view a, std::string_view b);
/// A whole number within bounds.
Result<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t low, std::uint64_t high);
/// Digits with an optional K, M, G (powers of 1024).
Result<std::uint64_t> parse_size(std::string_view text);
/// Seconds, or with a unit: ms, s, min.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);
/// "whole" or a power of two from 256 to 65536.
Result<std::uint32_t> parse_block(std::string_view text);

}  // namespace onebit
