// One row of the table: times, bandwidths, checks, wire bytes and errors of one size, type, op and mode.
//
// Collective: every rank makes the same calls, and gets the same Row but for what only rank 0 computes (the
// errors). Invariant: residuals are dropped before each part of a measurement, so rows do not depend on their
// order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "job.h"
#include "options.h"
#include "progress.h"

namespace onebit::perf {

/// One of nccl-tests' two groups of columns.
struct Timing {
  double seconds = 0;  ///< a call, over the ranks as -a says
  double algbw = 0;    ///< GB/s: the buffer's bytes over the time
  double busbw = 0;    ///< GB/s: algbw * 2 (W-1)/W, what each link carries in an exact allreduce
  std::optional<std::uint64_t> wrong;  ///< elements, over all ranks; none where nothing was checked
};

struct Row {
  Mode mode = Mode::kExact;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 0;
  Timing out_of_place;
  Timing in_place;
  double wire_bytes = 0;      ///< sent by a rank for one call, mean over the ranks
  double wire_bytes_max = 0;  ///< by the rank that sent most
  bool ranks_identical = true;
  // Relative L2 errors after so many calls of one tag with the same nearly normal data.
  std::optional<double> error_1;
  std::optional<double> error_10;
  std::optional<double> error_100;
  std::size_t error_elements = 0;  ///< they were measured on
  // Against the exact mode, where there is something to compare with.
  std::optional<double> wire_ratio;
  std::optional<double> speedup;

  std::size_t bytes() const { return count * size_of(type); }
  std::uint64_t wrong() const { return out_of_place.wrong.value_or(0) + in_place.wrong.value_or(0); }
};

class Measurement {
 public:
  /// Throws std::bad_alloc when there is no memory for two buffers of options.max_bytes.
  Measurement(Job& job, const Options& options, Progress& progress);

  /// Measures a row. None when the library would not take `mode` for it; `why` is its reason then.
  std::optional<Row> run(Mode mode, DataType type, ReduceOp op, std::size_t bytes, std::string* why);

 private:
  struct Case;
  Timing time(const Case& one, bool in_place, Row* row);
  void verify(const Case& one, Row* row);
  void measure_errors(const Case& one, Row* row);
  std::size_t calls_before_overflow(const Case& one) const;
  void call(const Case& one, const void* send, void* receive, std::size_t count);
  void digest(const void* data, std::size_t bytes);

  struct Free {
    void operator()(void* memory) const;
  };
  using Memory = std::unique_ptr<void, Free>;
  static Memory allocate(std::size_t bytes);

  Job& job_;
  const Options& options_;
  Progress& progress_;
  Memory send_;
  Memory receive_;
  std::uint64_t salt_ = 1;
  std::uint64_t digest_ = 0;  ///< of all results of the row, to be equal on all ranks
};

}  // namespace onebit::perf
