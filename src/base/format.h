// Text from a format string of fmt's, checked by the compiler.
//
// All of fmt that runs is behind one function, compiled once: it takes a compiler longer than most files of
// ours do, and a library that gets into other programs' processes must not need their libfmt.so. Elsewhere
// nothing is seen of fmt but fmt/core.h. Any thread.
#pragma once

#include <fmt/core.h>

#include <string>

namespace onebit {

void append_formatted_from(std::string& text, fmt::string_view format, fmt::format_args arguments);

template <typename... Args>
void append_formatted(std::string& text, fmt::format_string<Args...> format, Args&&... arguments) {
  append_formatted_from(text, format, fmt::make_format_args(arguments...));
}

template <typename... Args>
std::string formatted(fmt::format_string<Args...> format, Args&&... arguments) {
  std::string text;
  append_formatted_from(text, format, fmt::make_format_args(arguments...));
  return text;
}

}  // namespace onebit
