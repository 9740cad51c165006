// How settings are read and shown, by their types: what the rows of the table are made of.
//
// `member` is what a value is kept in. Pure functions; secret_file_value's reads the file when it parses.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/parse.h"
#include "base/settings.h"

namespace onebit {

SettingValue text_value(std::string Settings::*member);
/// A text that is one of `words`, as it is written there.
SettingValue word_value(std::string Settings::*member, std::vector<std::string_view> words);
SettingValue number_value(std::uint32_t Settings::*member, std::uint32_t low, std::uint32_t high);
SettingValue size_value(std::uint64_t Settings::*member);
/// A socket buffer's size, where NCCL's variables have -1 for the system's own tuning.
SettingValue socket_buffer_value(std::uint64_t Settings::*member);
SettingValue duration_value(std::chrono::milliseconds Settings::*member);

SettingValue block_value();
SettingValue port_range_value();
SettingValue gid_index_value();
/// Shown as "(set)".
SettingValue secret_value();
/// The path of a file of at most 64 KiB that holds the secret; where there is one already, that wins.
SettingValue secret_file_value();

/// The error of a word that is none of `words`.
Status not_one_of(const std::vector<std::string_view>& words);

template <typename E>
struct Choice {
  std::string_view word;
  E value;
};
/// A value that has a word.
template <typename E, std::size_t N>
SettingValue choice_value(E Settings::*member, std::array<Choice<E>, N> choices) {
  return {[=](Settings& s, std::string_view v) {
            std::vector<std::string_view> words;
            for (const auto& choice : choices) {
              words.push_back(choice.word);
              if (!same_word(choice.word, v)) continue;
              s.*member = choice.value;
              return Status();
            }
            return not_one_of(words);
          },
          [=](const Settings& s) {
            for (const auto& choice : choices) {
              if (choice.value == s.*member) return std::string(choice.word);
            }
            return std::string("?");
          }};
}

}  // namespace onebit
