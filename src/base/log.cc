#include "base/log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>

#include "base/fork.h"

namespace onebit {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarn};
std::atomic<LogSink> g_sink{nullptr};

/// Lines to stderr, without a lock.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const char* at = line.data();
    for (std::size_t left = line.size(); left > 0;) {
      const ssize_t written = ::write(STDERR_FILENO, at, left);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      at += written;
      left -= static_cast<std::size_t>(written);
    }
  }
  void flush_() override {}
};

/// A forked child may log: it is our lock that guards the sink, and not spdlog's, which it could inherit
/// held.
struct Log {
  ForkMutex mutex{LockLevel::kLog};
  std::unique_ptr<spdlog::logger> logger;
};

Log& the_log() {
  // Never destroyed: threads of the host process may log while static objects are torn down.
  static Log* const instance = [] {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    auto* made = new Log;
    made->logger = std::make_unique<spdlog::logger>("onebit", std::make_shared<StderrSink>());
    made->logger->set_pattern(std::string(host.data()) + ":%P %n %^%l%$ %v");
    made->logger->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}
/// Made when the library is loaded, see ForkMutex.
[[maybe_unused]] const Log& g_made_at_load = the_log();

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
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.logger->log(severity, text);
} catch (...) {  // a log line that cannot be written is no reason to fail the job
}

}  // namespace onebit
