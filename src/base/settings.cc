// Settings from the environment and from lines of text, and their printing.

#include "base/settings.h"

#include <algorithm>
#include <cstdlib>

namespace onebit {
namespace {

/// The variable that decides `row`, and its value; null if none is set. An empty value counts as unset.
const char* value_of(const SettingRow& row, std::string_view* origin) {
  for (const std::string_view name : {row.name, row.nccl_name}) {
    if (name.empty()) continue;
    const char* value = std::getenv(std::string(name).c_str());
    if (value != nullptr && *value != '\0') {
      *origin = name;
      return value;
    }
  }
  return nullptr;
}

Status parse_row(const SettingRow& row, Settings& settings, std::string_view origin, std::string_view value) {
  const Status status = row.value.parse(settings, value);
  if (status.ok()) return status;
  return Status::error(Code::kInvalidArgument, "{}={}: accepted is {}", origin,
                       row.name == "ONEBIT_SECRET" ? "(secret)" : value, status.message());
}

}  // namespace

Result<Settings> Settings::from_environment() {
  Settings settings;
  for (const SettingRow& row : setting_rows()) {
    std::string_view origin;
    const char* value = value_of(row, &origin);
    if (value == nullptr) continue;
    ONEBIT_RETURN_IF_ERROR(parse_row(row, settings, origin, value));
  }
  return settings;
}

Status apply_settings(Settings& settings, std::string_view lines) {
  bool has_secret = false;
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.empty()) continue;
    const auto equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    const auto rows = setting_rows();
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const SettingRow& r) { return r.name == name; });
    if (row == rows.end() || equals == std::string_view::npos) {
      return Status::error(
          Code::kInvalidArgument,
          "'{}' is no setting: accepted are NAME=VALUE lines with the names of docs/settings.md", line);
    }
    if (name == "ONEBIT_SECRET") has_secret = true;
    // These lines win over the environment, whichever of the two it has.
    if (name == "ONEBIT_SECRET_FILE" && !has_secret) settings.secret.clear();
    ONEBIT_RETURN_IF_ERROR(parse_row(*row, settings, name, line.substr(equals + 1)));
  }
  return Status();
}

std::string print_settings(const Settings& settings) {
  std::string text;
  for (const SettingRow& row : setting_rows()) {
    std::string_view origin = "default";
    const bool set = value_of(row, &origin) != nullptr;
    if (row.name == "ONEBIT_SECRET" && !set && !settings.secret.empty()) origin = "ONEBIT_SECRET_FILE";
    text += fmt::format("{}={}  # {}\n", row.name, row.value.show(settings), origin);
  }
  return text;
}

}  // namespace onebit
