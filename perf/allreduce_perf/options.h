// The command line of onebit_allreduce_perf: nccl-tests' flags, and our own.
//
// Invariant: Options that parse() returns are consistent (sizes in order, types that the op takes, settings
// that parse), so nothing after it has to refuse arguments. Plain data; no threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"

namespace onebit::perf {

/// How an allreduce travels: as it is, or in 1 bit with error compensation.
enum class Mode { kExact, kOneBit };
const char* name_of(Mode mode);

/// Which rank's time is reported; nccl-tests' -a.
enum class TimeOf { kRank0 = 0, kAverage = 1, kMinimum = 2, kMaximum = 3 };

struct Options {
  // What is run
  std::size_t min_bytes = 32 << 20;
  std::size_t max_bytes = 32 << 20;
  std::size_t step_bytes = 1 << 20;
  std::size_t step_factor = 1;  ///< above 1 it counts, else step_bytes does
  std::vector<DataType> types = {DataType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};
  std::vector<Mode> modes = {Mode::kExact, Mode::kOneBit};
  // How it is measured
  int iterations = 20;
  int aggregated = 1;  ///< calls an iteration
  int warmup = 1;
  int cycles = 1;  ///< 0 = until stopped
  int checks = 1;
  int blocking = 0;  ///< 1: a barrier after each call
  TimeOf time_of = TimeOf::kAverage;
  std::size_t error_elements = 1 << 20;  ///< the error columns look at no more than these; 0: not measured
  // What is reported
  std::string json_file;
  bool timestamps = false;
  bool print_config = false;
  // Where it runs
  int local_ranks = 0;         ///< 0: the launcher's environment says
  bool is_local_rank = false;  ///< started by -R of another process
  /// "NAME=VALUE" of the settings that flags ask for; they win over the environment.
  std::vector<std::string> settings;
  std::vector<std::string> command;  ///< argv

  /// The sizes in bytes, in order, each once.
  std::vector<std::size_t> sizes(DataType type) const;
  /// `settings` as onebitConfig_t wants them.
  std::string settings_text() const;
};

/// Reads the command line. Without options there is nothing to run: the exit status is in `status` then (0
/// after
/// --help and --version, 2 after an error, which was printed).
std::optional<Options> parse(int argc, char** argv, int* status);

}  // namespace onebit::perf
