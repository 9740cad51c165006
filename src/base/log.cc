#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

namespace onebit {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarn};
std::atomic<LogSink> g_sink{nullptr};

spdlog::logger& logger() {
  // Never destroyed: threads of the host process may log while static objects are torn down.
  static spdlog::logger* const instance = [] {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    auto* made = new spdlog::logger("onebit", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern(std::string(host.data()) + ":%P %n %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) noexcept {
  g_level.store(level, std::memory_order_relaxed);
}

LogLevel log_level() noexcept {
  return g_level.load(std::memory_order_relaxed);
}

void set_log_sink(LogSink sink) noexcept {
  g_sink.store(sink, std::memory_order_release);
}

void log_line(LogLevel level, std::string_view text) noexcept try {
  if (level > log_level()) return;
  if (const LogSink sink = g_sink.load(std::memory_order_acquire); sink != nullptr) return sink(level, text);
  const auto severity = level == LogLevel::kWarn   ? spdlog::level::warn
                        : level == LogLevel::kInfo ? spdlog::level::info
                                                   : spdlog::level::trace;
  logger().log(severity, text);
} catch (...) {  // a log line that cannot be written is no reason to fail the job
}

}  // namespace onebit
