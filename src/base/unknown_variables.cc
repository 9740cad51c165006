// Variables of the environment that look like settings and are none: a misspelt one would change nothing, and
// nobody would know. Any thread, as getenv.
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "base/settings.h"

namespace onebit {
namespace {

constexpr std::string_view kPrefix = "ONEBIT_";
/// Read by the Python package.
constexpr std::string_view kPythons = "ONEBIT_LIBRARY";

}  // namespace

std::string unknown_variables() {
  std::string found;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const auto is_its = [&](const SettingRow& row) { return row.name == name; };
    if (!name.starts_with(kPrefix) || name == kPythons) continue;
    if (std::any_of(setting_rows().begin(), setting_rows().end(), is_its)) continue;
    found += formatted("{}{}", found.empty() ? "" : ", ", name);
  }
  return found;
}

void warn_of_unknown_variables() {
  static std::atomic<bool> is_done = false;
  if (is_done.exchange(true)) return;
  const std::string unknown = unknown_variables();
  if (unknown.empty()) return;
  log(LogLevel::kWarn, "no settings of onebit, and without effect: {} (docs/settings.md has the names)",
      unknown);
}

}  // namespace onebit
