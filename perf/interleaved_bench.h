// Benchmarks of kernels against baselines in one run: repetitions interleaved at random, so that noise hits a
// kernel and its baseline alike; a table with medians, their ratio, and the ratio of the quietest
// repetitions.
//
// Threads: one.
#pragma once

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace onebit::perf {

/// A kernel and the name of the pass that it is measured against.
struct Row {
  std::string kernel, baseline;
};

/// Registers `body` under `name`; one iteration is a pass over `elements` elements. Measured by the clock for
/// a body that runs on several threads, else by processor time.
template <typename Body>
void add_benchmark(const std::string& name, std::size_t elements, int repetitions, bool threaded, Body body) {
  auto* const made = benchmark::RegisterBenchmark(name.c_str(), [body, elements](benchmark::State& state) {
    for (auto _ : state) {
      body();
      benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * elements));
  });
  made->Iterations(2)->Repetitions(repetitions)->Unit(benchmark::kMillisecond);
  if (threaded) made->UseRealTime();
}

/// Keeps the elements a second of every repetition, and shows nothing meanwhile.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Iteration) {
        rates_[run.run_name.function_name].push_back(run.counters.at("items_per_second"));
      }
    }
  }
  double median(const std::string& name) const {
    std::vector<double> rates = rates_.at(name);
    std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2),
                     rates.end());
    return rates[rates.size() / 2];
  }
  /// The quietest repetition's.
  double best(const std::string& name) const { return std::ranges::max(rates_.at(name)); }

 private:
  std::map<std::string, std::vector<double>> rates_;
};

/// Runs all that has been added.
inline Collector run_interleaved(const char* program) {
  std::string name = program, interleave = "--benchmark_enable_random_interleaving=true";
  char* arguments[] = {name.data(), interleave.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);
  return collector;
}

/// Prints the table, and gives it as JSON.
inline nlohmann::json print_rows(const std::vector<Row>& rows, const Collector& collector) {
  fmt::print("{:<24} {:>12}  {:<16} {:>12} {:>7} {:>8}\n", "kernel", "elements/s", "baseline", "elements/s",
             "ratio", "of best");
  nlohmann::json table = nlohmann::json::array();
  for (const Row& row : rows) {
    const double kernel = collector.median(row.kernel);
    const double baseline = collector.median(row.baseline);
    const double of_best = collector.best(row.kernel) / collector.best(row.baseline);
    fmt::print("{:<24} {:>12.4g}  {:<16} {:>12.4g} {:>7.3f} {:>8.3f}\n", row.kernel, kernel, row.baseline,
               baseline, kernel / baseline, of_best);
    table.push_back({{"kernel", row.kernel},
                     {"elements_per_second", kernel},
                     {"baseline", row.baseline},
                     {"baseline_elements_per_second", baseline},
                     {"ratio", kernel / baseline},
                     {"ratio_of_best", of_best}});
  }
  return table;
}

/// Writes `report` to a file; no name, no file.
inline void write_json(const std::string& path, const nlohmann::json& report) {
  if (!path.empty()) std::ofstream(path) << report.dump(2) << "\n";
}

}  // namespace onebit::perf
