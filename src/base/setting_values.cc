#include "base/setting_values.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/unique_fd.h"

namespace onebit {
namespace {

Status parse_port_range(Settings& s, std::string_view v) {
  const auto dash = v.find('-');
  const auto first = parse_unsigned(v.substr(0, dash), 0, 65535);
  const auto last = dash == std::string_view::npos ? first : parse_unsigned(v.substr(dash + 1), 0, 65535);
  if (!first.ok() || !last.ok() || *first > *last || (*first == 0) != (*last == 0)) {
    return Status(Code::kInvalidArgument, "a port, or two as in 20000-20100; 0 lets the system choose");
  }
  s.port_range = {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
  return Status();
}

Status parse_gid_index(Settings& s, std::string_view v) {
  if (v == "-1") {
    s.ib_gid_index = -1;
    return Status();
  }
  const auto value = parse_unsigned(v, 0, 65535);
  if (!value.ok()) return Status(Code::kInvalidArgument, "a whole number from 0 to 65535, or -1");
  s.ib_gid_index = static_cast<std::int32_t>(*value);
  return Status();
}

/// The contents of a regular file of at most 64 KiB; anything else may block or never end.
std::optional<std::string> read_small_file(std::string_view path) {
  constexpr std::size_t kMost = std::size_t{64} << 10;
  const UniqueFd fd(::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::string contents(kMost + 1, '\0');
  std::size_t have = 0;
  while (have < contents.size()) {
    const ssize_t got = ::read(fd.get(), contents.data() + have, contents.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > kMost) return std::nullopt;
  contents.resize(have);
  return contents;
}

Status parse_secret_file(Settings& s, std::string_view path) {
  std::optional<std::string> secret = read_small_file(path);
  while (secret && !secret->empty() && (secret->back() == '\n' || secret->back() == '\r')) secret->pop_back();
  if (!secret || secret->empty()) {
    return Status(Code::kInvalidArgument, "a readable file of up to 64 KiB with the secret");
  }
  if (s.secret.empty()) s.secret = std::move(*secret);  // ONEBIT_SECRET wins
  return Status();
}

}  // namespace

Status not_one_of(const std::vector<std::string_view>& words) {
  std::string list;
  for (const std::string_view word : words) append_formatted(list, "{}{}", list.empty() ? "" : ", ", word);
  return Status::error(Code::kInvalidArgument, "one of {}", list);
}

SettingValue text_value(std::string Settings::*member) {
  return {[member](Settings& s, std::string_view v) {
            s.*member = std::string(v);
            return Status();
          },
          [member](const Settings& s) { return s.*member; }};
}

SettingValue word_value(std::string Settings::*member, std::vector<std::string_view> words) {
  return {[member, words = std::move(words)](Settings& s, std::string_view v) {
            for (const std::string_view word : words) {
              if (!same_word(word, v)) continue;
              s.*member = std::string(word);
              return Status();
            }
            return not_one_of(words);
          },
          [member](const Settings& s) { return s.*member; }};
}

SettingValue number_value(std::uint32_t Settings::*member, std::uint32_t low, std::uint32_t high) {
  return {[=](Settings& s, std::string_view v) {
            ONEBIT_ASSIGN_OR_RETURN(const std::uint64_t value, parse_unsigned(v, low, high));
            s.*member = static_cast<std::uint32_t>(value);
            return Status();
          },
          [member](const Settings& s) { return std::to_string(s.*member); }};
}

SettingValue size_value(std::uint64_t Settings::*member) {
  return {[=](Settings& s, std::string_view v) {
            ONEBIT_ASSIGN_OR_RETURN(s.*member, parse_size(v));
            return Status();
          },
          [member](const Settings& s) { return std::to_string(s.*member); }};
}

SettingValue socket_buffer_value(std::uint64_t Settings::*member) {
  SettingValue size = size_value(member);
  return {[parse = std::move(size.parse)](Settings& s, std::string_view v) {
            return parse(s, v == "-1" ? "0" : v);
          },
          std::move(size.show)};
}

SettingValue duration_value(std::chrono::milliseconds Settings::*member) {
  return {[=](Settings& s, std::string_view v) {
            ONEBIT_ASSIGN_OR_RETURN(s.*member, parse_duration(v));
            return Status();
          },
          [member](const Settings& s) {
            const auto count = (s.*member).count();
            return count % 1000 == 0 ? formatted("{}s", count / 1000) : formatted("{}ms", count);
          }};
}

SettingValue block_value() {
  return {[](Settings& s, std::string_view v) {
            ONEBIT_ASSIGN_OR_RETURN(s.block, parse_block(v));
            return Status();
          },
          [](const Settings& s) { return s.block == 0 ? "whole" : std::to_string(s.block); }};
}

SettingValue port_range_value() {
  return {parse_port_range, [](const Settings& s) {
            return s.port_range.first == 0 ? std::string("0")
                                           : formatted("{}-{}", s.port_range.first, s.port_range.last);
          }};
}

SettingValue gid_index_value() {
  return {parse_gid_index, [](const Settings& s) { return std::to_string(s.ib_gid_index); }};
}

SettingValue secret_value() {
  return {text_value(&Settings::secret).parse,
          [](const Settings& s) { return s.secret.empty() ? "" : "(set)"; }};
}

SettingValue secret_file_value() {
  return {parse_secret_file, [](const Settings&) { return std::string(); }};
}

}  // namespace onebit
