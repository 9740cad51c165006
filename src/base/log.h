// Log lines of the library, by spdlog, to stderr: "host:pid onebit WARN ...". Level from ONEBIT_DEBUG.
//
// Quiet by default (WARN). A library that lives inside another one hands the lines to that one's log instead.
// Callable from any thread; never throws.
#pragma once

#include <string_view>
#include <utility>

#include "base/format.h"

namespace onebit {

enum class LogLevel : int { kNone = 0, kWarn = 1, kInfo = 2, kTrace = 3 };

void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;
/// Where lines go from now on; null: to stderr. It may be called by several threads at once.
using LogSink = void (*)(LogLevel level, std::string_view text) noexcept;
void set_log_sink(LogSink sink) noexcept;
/// Writes one line when `level` is enabled.
void log_line(LogLevel level, std::string_view text) noexcept;

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level > log_level()) return;
  log_line(level, formatted(format, std::forward<Args>(args)...));
}

}  // namespace onebit
