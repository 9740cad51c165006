// What rank 0 prints and writes: nccl-tests' table with our columns after its own, and the JSON file.
//
// Invariant: the first thirteen columns, the lines that start with '#' and their order are nccl-tests', so
// what reads its output reads ours. One thread; on other ranks nothing is printed.
#pragma once

#include <string>
#include <vector>

#include "measure.h"
#include "options.h"

namespace onebit::perf {

/// Where a rank runs. Sent between ranks as it is.
struct Place {
  int pid = 0;
  int local_rank = 0;
  char host[64] = {};
  char processor[96] = {};

  /// This process's.
  static Place own();
};

/// The results so far.
struct Summary {
  std::vector<Row> rows;
  std::uint64_t wrong = 0;
  bool ranks_identical = true;
  std::string error;  ///< why the run ended early; empty if it did not

  void add(const Row& row);
  bool ok() const { return wrong == 0 && ranks_identical && error.empty(); }
  /// Of all rows of a mode, or of all; out of place and in place count alike.
  double average_busbw(const Mode* mode = nullptr) const;
};

class Table {
 public:
  Table(const Options& options, bool printed) : options_(options), printed_(printed) {}
  void header(const std::vector<Place>& places) const;
  void row(const Row& row) const;
  /// A line that starts with '#'.
  void note(const std::string& text) const;
  void footer(const Summary& summary) const;

 private:
  const Options& options_;
  bool printed_;
};

/// "NAME=value  # origin" lines of the settings that a run with `options` uses. Throws onebit::Error when a
/// variable of the environment cannot be parsed.
std::string settings_in_use(const Options& options);

/// False, and a message on stderr, when the file cannot be written. `places` may be empty (no rank has
/// joined).
bool write_json(const Options& options, const std::vector<Place>& places, const Summary& summary);
/// Whether write_json will be able to; asked before the measurements. Prints why not.
bool can_write_json(const Options& options);

}  // namespace onebit::perf
