// The JSON file of a run, and the settings it ran with.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report.h"

namespace onebit::perf {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json timing(const Timing& one) {
  return {{"time_us", one.seconds * 1e6},
          {"algbw", one.algbw},
          {"busbw", one.busbw},
          {"wrong", optional(one.wrong)}};
}

/// The out-of-place figures are the row's own; those in place are under "in_place".
Json result(const Row& row) {
  return {{"size", row.bytes()},
          {"count", row.count},
          {"type", onebit::name_of(row.type)},
          {"op", onebit::name_of(row.op)},
          {"mode", name_of(row.mode)},
          {"time_us", row.out_of_place.seconds * 1e6},
          {"algbw", row.out_of_place.algbw},
          {"busbw", row.out_of_place.busbw},
          {"wire_bytes", row.wire_bytes},
          {"wire_bytes_max", row.wire_bytes_max},
          {"wire_ratio", optional(row.wire_ratio)},
          {"rel_l2_error", optional(row.error_1)},
          {"residual_error_10", optional(row.error_10)},
          {"residual_error_100", optional(row.error_100)},
          {"error_elements", row.error_elements},
          {"ranks_identical", row.ranks_identical},
          {"wrong", optional(row.out_of_place.wrong)},
          {"speedup", optional(row.speedup)},
          {"in_place", timing(row.in_place)}};
}

/// "NAME=value  # origin" lines as an object of name and value.
Json settings_object(const std::string& lines) {
  Json object = Json::object();
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const auto equals = line.find('=');
    const auto origin = line.rfind("  # ");
    if (equals == std::string::npos || origin == std::string::npos) continue;
    object[line.substr(0, equals)] = line.substr(equals + 1, origin - equals - 1);
  }
  return object;
}

void complain(const Options& options, const char* what) {
  fmt::print(stderr, "onebit_allreduce_perf: --output_file {}: {}: {}\n", options.json_file, what,
             std::strerror(errno));
}

bool is_device(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error);
}

/// Where the document grows, so that the file is there whole or not at all.
std::string written_first(const Options& options) {
  return is_device(options.json_file) ? options.json_file : options.json_file + ".tmp";
}

}  // namespace

std::string settings_in_use(const Options& options) {
  std::size_t needed = 0;
  char start[1];
  onebit::check(onebitGetSettings(start, sizeof start, &needed));
  std::string text(needed, '\0');
  onebit::check(onebitGetSettings(text.data(), text.size(), nullptr));
  std::istringstream environment(text.c_str());
  std::string result;
  for (std::string line; std::getline(environment, line);) {
    const std::string name = line.substr(0, line.find('=') + 1);
    std::istringstream own(options.settings_text());
    for (std::string setting; std::getline(own, setting);) {
      if (setting.starts_with(name)) line = setting + "  # onebit_allreduce_perf";
    }
    result += line + "\n";
  }
  return result;
}

bool can_write_json(const Options& options) {
  if (options.json_file.empty()) return true;
  const bool writable = static_cast<bool>(std::ofstream(written_first(options), std::ios::app));
  if (!writable) complain(options, "cannot be written");
  if (!is_device(options.json_file)) {
    // No results of another run may pass for this one's, should it not get to its end.
    std::error_code none_there;
    std::filesystem::remove(written_first(options), none_there);
    if (writable) std::filesystem::remove(options.json_file, none_there);
  }
  return writable;
}

bool write_json(const Options& options, const std::vector<Place>& places, const Summary& summary) {
  if (options.json_file.empty()) return true;
  Json results = Json::array();
  for (const Row& row : summary.rows) results.push_back(result(row));
  Json devices = Json::array();
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    devices.push_back({{"rank", rank},
                       {"pid", places[rank].pid},
                       {"host", std::string(places[rank].host)},
                       {"processor", std::string(places[rank].processor)}});
  }
  std::vector<std::string> command = options.command;
  std::erase(command, "--local-rank");  // not the user's
  const Json document = {
      {"program", "onebit_allreduce_perf"},
      {"version", fmt::format("{}.{}.{}", ONEBIT_MAJOR, ONEBIT_MINOR, ONEBIT_PATCH)},
      {"command", command},
      {"ranks", places.size()},
      {"device", std::string(Place::own().processor)},
      {"devices", devices},
      {"iterations", options.iterations},
      {"settings", settings_object(settings_in_use(options))},
      {"results", results},
      {"out_of_bounds", summary.wrong},
      {"ranks_identical", summary.ranks_identical},
      {"average_busbw", summary.average_busbw()},
      {"error", summary.error.empty() ? Json(nullptr) : Json(summary.error)},
      {"ok", summary.ok()},
  };
  std::ofstream file(written_first(options), std::ios::trunc);
  file << document.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
  file.close();
  const bool whole = file && (is_device(options.json_file) ||
                              std::rename(written_first(options).c_str(), options.json_file.c_str()) == 0);
  if (!whole) complain(options, "not written");
  return whole;
}

}  // namespace onebit::perf
