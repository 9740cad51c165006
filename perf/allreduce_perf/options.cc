#include "options.h"

#include <fmt/format.h>
#include <onebit/onebit.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/settings.h"

namespace onebit::perf {
namespace {

constexpr const char* kDescription =
    "Measures onebit's allreduce between the ranks of a job, exact and in 1 bit, with the flags and the "
    "columns of nccl-tests' "
    "all_reduce_perf.\n"
    "Ranks: -R N starts N on this machine; without it, this process is one rank of the job that a launcher "
    "(torchrun, mpirun, "
    "srun) describes in the environment.";

constexpr const char* kFooter =
    "Columns after nccl-tests' thirteen (\"-\": does not apply):\n"
    "  mode      exact or 1bit\n"
    "  wire      bytes that a rank sent for one call, mean over the ranks\n"
    "  ratio     the exact mode's wire bytes over these (measured where both modes run, else by its "
    "formula)\n"
    "  err1      relative L2 error of one call without history; data: sums of 4 uniform numbers, near to "
    "normal\n"
    "  err100    the same of the sum of 100 calls with these data and one tag; residuals make it fall about "
    "as 1/calls\n"
    "  same      whether all ranks got the same bytes\n"
    "  speedup   the exact mode's out-of-place time over this one's\n"
    "#wrong counts elements over all ranks; in 1 bit it does so for data that 1 bit can carry without loss.\n"
    "Sums that are made in place grow; before they overflow, the data are renewed outside the measured "
    "time.\n"
    "Exit status: 0; 1 when results are wrong, ranks differ or a call fails; 2 for a wrong argument; 128 + "
    "signal.";

/// nccl-tests' flags that have no meaning for host memory are taken where they ask for what we do anyway.
struct Neutral {
  const char* names;
  int only;  ///< the one value that is accepted; -1: any
  const char* meaning;
};
constexpr Neutral kNeutral[] = {
    {"-t,--nthreads", 1, "Accepted as 1: a process is one rank (see -R)"},
    {"-g,--ngpus", 1, "Accepted as 1: buffers are host memory"},
    {"-p,--parallel_init", -1, "Accepted, without effect"},
    {"-r,--root", -1, "Accepted, without effect"},
    {"-y,--stream_null", -1, "Accepted, without effect"},
    {"-G,--cudagraph", 0, "Accepted as 0"},
    {"-C,--report_cputime", 0, "Accepted as 0: calls block, so there is one time"},
};

/// A whole number in a range. The range is not repeated in --help.
template <typename T>
CLI::Validator from_to(T low, T high) {
  return CLI::Range(low, high).description("");
}

/// A flag for a size, as in 64M.
CLI::Option* add_size(CLI::App& app, const std::string& names, std::size_t* value,
                      const std::string& meaning) {
  return app
      .add_option_function<std::string>(
          names,
          [value, names](const std::string& text) {
            const auto size = parse_size(text);
            if (!size.ok())
              throw CLI::ValidationError(names,
                                         fmt::format("{}: accepted is {}", text, size.status().message()));
            *value = *size;
          },
          meaning)
      ->type_name("SIZE");
}

/// A flag for a setting of the table; the value is checked by the table's own parser.
CLI::Option* add_setting(CLI::App& app, const std::string& flag, std::string_view setting,
                         const std::string& type, std::vector<std::string>* settings) {
  const auto rows = setting_rows();
  const SettingRow& row =
      *std::find_if(rows.begin(), rows.end(), [&](const SettingRow& one) { return one.name == setting; });
  return app
      .add_option_function<std::string>(
          flag,
          [&row, flag, settings](const std::string& text) {
            Settings scratch;
            if (const Status status = row.value.parse(scratch, text); !status.ok()) {
              throw CLI::ValidationError(flag, fmt::format("{}: accepted is {}", text, status.message()));
            }
            settings->push_back(fmt::format("{}={}", row.name, text));
          },
          fmt::format("{} in place of the environment's: {}", row.name, row.type))
      ->type_name(type);
}

std::vector<DataType> read_types(const std::string& text) {
  if (text == "all") {
    return {DataType::kInt32,   DataType::kInt64,   DataType::kFloat16,
            DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16};
  }
  const auto type = parse_data_type(text);
  if (!type) {
    throw CLI::ValidationError("--datatype",
                               text + ": accepted is int32, int64, half, float, double, bfloat16 or all");
  }
  return {*type};
}

std::vector<ReduceOp> read_ops(const std::string& text) {
  if (text == "all") return {ReduceOp::kSum, ReduceOp::kAvg};
  const auto op = parse_reduce_op(text);
  if (!op) throw CLI::ValidationError("--op", text + ": accepted is sum, avg or all");
  return {*op};
}

std::vector<Mode> read_modes(const std::string& text) {
  if (text == "exact") return {Mode::kExact};
  if (text == "1bit") return {Mode::kOneBit};
  if (text == "both") return {Mode::kExact, Mode::kOneBit};
  throw CLI::ValidationError("--mode", text + ": accepted is exact, 1bit or both");
}

/// What single flags cannot know. Throws.
void check_together(Options& options, bool max_given) {
  if (!max_given) options.max_bytes = std::max(options.max_bytes, options.min_bytes);
  if (options.min_bytes > options.max_bytes) {
    throw CLI::ValidationError(
        "--minbytes", fmt::format("{} is above --maxbytes, {}", options.min_bytes, options.max_bytes));
  }
  if (options.step_factor <= 1 && options.step_bytes == 0 && options.min_bytes < options.max_bytes) {
    throw CLI::ValidationError("--stepbytes", "0 never gets from --minbytes to --maxbytes");
  }
  const bool some_floating = std::any_of(options.types.begin(), options.types.end(), is_floating);
  if (!some_floating && options.ops == std::vector{ReduceOp::kAvg}) {
    throw CLI::ValidationError("--op", "avg takes floating types only");
  }
  const bool some_compressible = std::any_of(options.types.begin(), options.types.end(), is_compressible);
  if (!some_compressible && options.modes == std::vector{Mode::kOneBit}) {
    throw CLI::ValidationError("--mode", "1bit takes the types float, half and bfloat16 only");
  }
}

}  // namespace

const char* name_of(Mode mode) {
  return mode == Mode::kExact ? "exact" : "1bit";
}

std::vector<std::size_t> Options::sizes(DataType type) const {
  const std::size_t element = size_of(type);
  std::vector<std::size_t> list;
  for (std::size_t size = min_bytes; size <= max_bytes;) {
    const std::size_t whole = size / element * element;
    if (list.empty() || list.back() != whole) list.push_back(whole);
    if (step_factor > 1) {
      if (size > max_bytes / step_factor) break;
      size = size == 0 ? element : size * step_factor;  // a factor leads nowhere from 0
    } else {
      if (step_bytes == 0) break;
      size += step_bytes;
    }
  }
  return list;
}

std::string Options::settings_text() const {
  // Rows of the mode "1bit" are in 1 bit, whatever the environment's rules and limits say.
  std::string text = "ONEBIT_COMPRESS=all\nONEBIT_MIN_SIZE=0";
  for (const std::string& setting : settings) text += "\n" + setting;
  return text;
}

namespace {

/// The flags of nccl-tests that have a meaning here, and those that are only let pass.
void add_nccl_tests_flags(CLI::App& app, Options& options) {
  const CLI::Validator any_count = from_to(1, std::numeric_limits<int>::max());
  const CLI::Validator any_or_none = from_to(0, std::numeric_limits<int>::max());
  add_size(app, "-b,--minbytes", &options.min_bytes, "Smallest buffer; K, M and G are powers of 1024 [32M]");
  add_size(app, "-e,--maxbytes", &options.max_bytes, "Largest buffer [32M]");
  add_size(app, "-i,--stepbytes", &options.step_bytes, "From one size to the next, added [1M]");
  app.add_option("-f,--stepfactor", options.step_factor,
                 "From one size to the next, multiplied; 1: --stepbytes counts [1]")
      ->check(from_to(std::size_t{1}, std::size_t{1} << 40));
  app.add_option("-n,--iters", options.iterations, "Measured iterations a row [20]")->check(any_count);
  app.add_option("-m,--agg_iters", options.aggregated, "Calls an iteration [1]")->check(any_count);
  app.add_option("-w,--warmup_iters", options.warmup, "Calls before each measurement [1]")
      ->check(any_or_none);
  app.add_option("-N,--run_cycles", options.cycles, "Times the table is run; 0: until stopped [1]")
      ->check(any_or_none);
  app.add_option("-c,--check", options.checks, "Calls whose every element is checked; 0: none [1]")
      ->check(any_or_none);
  app.add_option_function<std::string>(
         "-o,--op", [&](const std::string& text) { options.ops = read_ops(text); }, "sum, avg or all [sum]")
      ->type_name("OP");
  app.add_option_function<std::string>(
         "-d,--datatype", [&](const std::string& text) { options.types = read_types(text); },
         "int32, int64, half, float, double, bfloat16 or all; 1bit takes half, float and bfloat16 [float]")
      ->type_name("TYPE");
  app.add_option("-z,--blocking", options.blocking, "1: a barrier after each call [0]")->check(from_to(0, 2));
  app.add_option_function<int>(
         "-a,--average", [&](int value) { options.time_of = static_cast<TimeOf>(value); },
         "The time reported: 0 of rank 0, 1 the ranks' average, 2 their minimum, 3 their maximum [1]")
      ->check(from_to(0, 3));
  app.add_option_function<int>(
         "-T,--timeout",
         [&](int seconds) {
           if (seconds > 0) options.settings.push_back(fmt::format("ONEBIT_TIMEOUT={}", seconds));
         },
         "Seconds without progress after which a call fails; 0: as the environment says [0]")
      ->check(from_to(0, 1'000'000));
  app.add_option("-S,--report_timestamps", options.timestamps,
                 "1: the time of day at the end of each row [0]")
      ->check(from_to(0, 1));
  app.add_option("-J,--output_file", options.json_file, "Writes the results to a JSON file too")
      ->type_name("FILE");
  for (const Neutral& flag : kNeutral) {
    CLI::Option* option = app.add_option_function<int>(
        flag.names, [](int) {}, flag.meaning);
    if (flag.only >= 0) option->check(from_to(flag.only, flag.only));
  }
}

void add_own_flags(CLI::App& app, Options& options) {
  constexpr const char* kGroup = "onebit";
  app.add_option("-R,--ranks", options.local_ranks, "Starts so many ranks on this machine")
      ->check(from_to(1, 4096))
      ->group(kGroup);
  app.add_option_function<std::string>(
         "-M,--mode", [&](const std::string& text) { options.modes = read_modes(text); },
         "exact, 1bit or both [both]")
      ->type_name("MODE")
      ->group(kGroup);
  add_setting(app, "--block", "ONEBIT_BLOCK", "BLOCK", &options.settings)->group(kGroup);
  add_setting(app, "--scale", "ONEBIT_SCALE", "SCALE", &options.settings)->group(kGroup);
  add_setting(app, "--chunk", "ONEBIT_CHUNK", "SIZE", &options.settings)->group(kGroup);
  add_setting(app, "--threads", "ONEBIT_THREADS", "N", &options.settings)->group(kGroup);
  add_size(
      app, "--error-elements", &options.error_elements,
      "err1 and err100 look at no more elements than this, in buffers of their own; 0: not measured [1M]")
      ->group(kGroup);
  app.add_flag("--print-config", options.print_config,
               "Prints the settings that a run would use, and where each comes from")
      ->group(kGroup);
  app.add_flag("--local-rank", options.is_local_rank)->group("");  // -R gives it to the processes it starts
}

}  // namespace

std::optional<Options> parse(int argc, char** argv, int* status) {
  Options options;
  options.command.assign(argv, argv + argc);
  CLI::App app(kDescription, "onebit_allreduce_perf");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("onebit {}.{}.{}", ONEBIT_MAJOR, ONEBIT_MINOR, ONEBIT_PATCH));
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_nccl_tests_flags(app, options);
  add_own_flags(app, options);
  try {
    app.parse(argc, argv);
    check_together(options, app.count("--maxbytes") > 0);
  } catch (const CLI::Success& done) {
    *status = app.exit(done);
    return std::nullopt;
  } catch (const CLI::Error& error) {
    fmt::print(stderr, "onebit_allreduce_perf: {}\n(onebit_allreduce_perf --help lists the flags)\n",
               error.what());
    *status = 2;
    return std::nullopt;
  }
  *status = 0;
  return options;
}

}  // namespace onebit::perf
