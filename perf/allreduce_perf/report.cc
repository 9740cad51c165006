#include "report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace onebit::perf {
namespace {

/// A number in `width` columns with as many decimals as fit, as nccl-tests prints its times and bandwidths.
std::string number(double value, int width) {
  int digits = 0;
  for (double power = 1; value >= power; power *= 10) ++digits;
  if (digits < width - 2) return fmt::format("{:>{}.2f}", value, width);
  if (digits < width - 1) return fmt::format("{:>{}.1f}", value, width);
  if (digits <= width) return fmt::format("{:>{}.0f}", value, width);
  return fmt::format("{:>{}.{}e}", value, width, width >= 7 ? 1 : 0);
}

std::string timing(const Timing& one) {
  return fmt::format("  {}  {}  {}  {:>6}", number(one.seconds * 1e6, 7), number(one.algbw, 6),
                     number(one.busbw, 6),
                     one.wrong ? fmt::format("{:g}", static_cast<double>(*one.wrong)) : "N/A");
}

/// A number in the column's format, or "-".
std::string optional(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string now() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::chrono::system_clock::now()));
}

constexpr const char* kKeys = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}";
constexpr const char* kGroup = "  {:>7}  {:>6}  {:>6}  {:>6}";
constexpr const char* kOurs = "  {:>5}  {:>11}  {:>6}  {:>8}  {:>8}  {:>4}  {:>7}";

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown processor";
}

}  // namespace

Place Place::own() {
  Place place;
  place.pid = getpid();
  const char* local = std::getenv("LOCAL_RANK");
  place.local_rank = local == nullptr ? 0 : std::atoi(local);
  gethostname(place.host, sizeof place.host - 1);
  processor_name().copy(place.processor, sizeof place.processor - 1);
  return place;
}

void Summary::add(const Row& row) {
  rows.push_back(row);
  wrong += row.wrong();
  ranks_identical = ranks_identical && row.ranks_identical;
}

double Summary::average_busbw(const Mode* mode) const {
  double sum = 0;
  double count = 0;
  for (const Row& row : rows) {
    if (mode != nullptr && row.mode != *mode) continue;
    sum += row.out_of_place.busbw + row.in_place.busbw;
    count += 2;
  }
  return count == 0 ? 0 : sum / count;
}

void Table::note(const std::string& text) const {
  if (!printed_) return;
  fmt::print("# {}\n", text);
  std::fflush(stdout);
}

void Table::header(const std::vector<Place>& places) const {
  if (!printed_) return;
  int version = 0;
  onebitGetVersion(&version);
  fmt::print("# onebit version {}.{}.{} onebit-library={}\n", ONEBIT_MAJOR, ONEBIT_MINOR, ONEBIT_PATCH,
             version);
  fmt::print("# Collective test starting: onebit_allreduce_perf\n");
  const bool factor = options_.step_factor > 1;
  fmt::print(
      "# nThread 1 nGpus 0 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
      "validation: {} "
      "graph: 0\n",
      options_.min_bytes, options_.max_bytes, factor ? options_.step_factor : options_.step_bytes,
      factor ? "factor" : "bytes", options_.warmup, options_.iterations, options_.aggregated,
      options_.checks);
  if (options_.blocking == 1) fmt::print("# Blocking Enabled: barrier after each collective\n");
  for (const std::string& setting : options_.settings) fmt::print("# {}\n", setting);
  fmt::print("#\n# Using devices\n");
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    fmt::print("#  Rank {:2} Group  0 Pid {:6} on {:>10} device {:2} [cpu] {}\n", rank, place.pid, place.host,
               place.local_rank, place.processor);
  }
  const char* stamp = options_.timestamps ? "            timestamp" : "";
  fmt::print("#\n");
  fmt::print(fmt::runtime(std::string(kKeys) + "  {:^31}  {:^31}\n"), "", "", "", "", "", "out-of-place",
             "in-place");
  fmt::print(fmt::runtime(std::string(kKeys) + kGroup + kGroup + kOurs + "{}\n"), "size", "count", "type",
             "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "mode",
             "wire", "ratio", "err1", "err100", "same", "speedup", stamp);
  fmt::print(fmt::runtime(std::string(kKeys) + kGroup + kGroup + kOurs + "\n"), "(B)", "(elements)", "", "",
             "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "", "(B/rank)", "",
             "(rel L2)", "(rel L2)", "", "");
  std::fflush(stdout);
}

void Table::row(const Row& row) const {
  if (!printed_) return;
  fmt::print("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}", row.bytes(), row.count, onebit::name_of(row.type),
             onebit::name_of(row.op), -1, timing(row.out_of_place), timing(row.in_place));
  fmt::print(fmt::runtime(kOurs), name_of(row.mode), fmt::format("{:.0f}", row.wire_bytes),
             optional(row.wire_ratio, "{:.2f}"), optional(row.error_1, "{:.3g}"),
             optional(row.error_100, "{:.3g}"), row.ranks_identical ? "yes" : "NO",
             optional(row.speedup, "{:.2f}"));
  fmt::print("{}\n", options_.timestamps ? "  " + now() : "");
  std::fflush(stdout);
}

void Table::footer(const Summary& summary) const {
  if (!printed_) return;
  fmt::print("# {:<20} : {} {}\n", "Out of bounds values", summary.wrong,
             summary.wrong == 0 ? "OK" : "FAILED");
  fmt::print("# {:<20} : {} {}\n", "Equal on all ranks", summary.ranks_identical ? "yes" : "no",
             summary.ranks_identical ? "OK" : "FAILED");
  fmt::print("# {:<20} : {:g} \n", "Avg bus bandwidth", summary.average_busbw());
  if (options_.modes.size() > 1) {
    for (const Mode mode : options_.modes) {
      fmt::print("# {:<20} : {:g} \n", fmt::format("  of mode {}", name_of(mode)),
                 summary.average_busbw(&mode));
    }
  }
  fmt::print("#\n# Collective test concluded: onebit_allreduce_perf\n");
  std::fflush(stdout);
}

}  // namespace onebit::perf
