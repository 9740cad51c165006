// onebit_allreduce_perf: nccl-tests' all_reduce_perf for onebit, on host memory. Start reading here.
//
// With -R the process only starts ranks and looks after them (launch.h). A rank joins its job, measures row
// by row (measure.h), and rank 0 prints (report.h).
#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <string>

#include "launch.h"
#include "measure.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace onebit::perf {
namespace {

constexpr int kFailed = 1;
constexpr int kBadArguments = 2;

void complain(int rank, const std::string& text) {
  fmt::print(stderr, "onebit_allreduce_perf: {}{}\n", rank < 0 ? "" : fmt::format("rank {}: ", rank), text);
}

/// All sizes of one type and op.
void run_sizes(const Options& options, DataType type, ReduceOp op, Measurement& measurement,
               Progress& progress, const Table& table, Summary& summary, int ranks) {
  for (const std::size_t bytes : options.sizes(type)) {
    std::optional<Row> exact;
    for (const Mode mode : options.modes) {
      if (mode == Mode::kOneBit && !is_compressible(type)) continue;
      std::string why;
      std::optional<Row> row = measurement.run(mode, type, op, bytes, &why);
      progress.clear();
      if (!row) {
        table.note(fmt::format("{} {} {} does not go in 1 bit: {}", bytes, onebit::name_of(type),
                               onebit::name_of(op), why));
        continue;
      }
      if (mode == Mode::kOneBit && row->wire_bytes > 0) {
        const double formula = 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes);
        row->wire_ratio = (exact ? exact->wire_bytes : formula) / row->wire_bytes;
      }
      if (mode == Mode::kOneBit && exact && row->out_of_place.seconds > 0) {
        row->speedup = exact->out_of_place.seconds / row->out_of_place.seconds;
      }
      table.row(*row);
      summary.add(*row);
      if (mode == Mode::kExact) exact = row;
    }
  }
}

/// This process as one rank, from joining to the exit status.
int run_rank(const Options& options) {
  int rank = -1;
  bool reports = false;
  Summary summary;
  std::vector<Place> places;
  try {
    Job job(options.settings_text());
    rank = job.rank();
    reports = rank == 0;
    if (reports && !options.is_local_rank && !can_write_json(options)) return kBadArguments;
    Progress progress(reports);
    const Table table(options, reports);
    places = job.gather(Place::own());
    Measurement measurement(job, options, progress);
    table.header(places);
    for (int cycle = 0; options.cycles == 0 || cycle < options.cycles; ++cycle) {
      for (const DataType type : options.types) {
        for (const ReduceOp op : options.ops) {
          if (op == ReduceOp::kAvg && !is_floating(type)) continue;
          run_sizes(options, type, op, measurement, progress, table, summary, job.ranks());
        }
      }
    }
    job.barrier();  // no rank leaves while another still needs it
    table.footer(summary);
  } catch (const onebit::Error& error) {
    summary.error = error.what();
  } catch (const std::bad_alloc&) {
    summary.error =
        fmt::format("not enough memory for two buffers of {} bytes; see --maxbytes", options.max_bytes);
  }
  if (!summary.error.empty()) {
    complain(rank, summary.error);
    if (rank < 0 && !options.is_local_rank) {
      complain(rank, "with -R N it starts N ranks on this machine itself");
    }
  }
  try {
    if (reports && !write_json(options, places, summary)) return kFailed;
  } catch (const onebit::Error& error) {
    complain(rank, error.what());
    return kFailed;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    complain(rank, "the table could not be written");
    return kFailed;
  }
  return summary.ok() ? 0 : kFailed;
}

int run(int argc, char** argv) {
  int status = 0;
  const auto options = parse(argc, argv, &status);
  if (!options) return status;
  if (!options->is_local_rank) {
    try {
      const std::string settings =
          settings_in_use(*options);  // a variable that does not parse is said once, here
      if (options->print_config) {
        fmt::print("{}", settings);
        return 0;
      }
    } catch (const onebit::Error& error) {
      complain(-1, error.what());
      return kBadArguments;
    }
    if (options->local_ranks > 0) {
      if (!can_write_json(*options)) return kBadArguments;
      return run_local_ranks(options->command, options->local_ranks);
    }
  }
  return run_rank(*options);
}

}  // namespace
}  // namespace onebit::perf

int main(int argc, char** argv) {
  return onebit::perf::run(argc, argv);
}
