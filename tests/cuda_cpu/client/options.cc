#include "cuda_cpu/client/options.h"

#include <CLI/CLI.hpp>
#include <map>

namespace onebit::nccl_client {

std::optional<Options> parse(int argc, char** argv, int* status) {
  Options options;
  CLI::App app(
      "Allreduces by NCCL between ranks as processes, threads and devices of one thread, with checked "
      "results.");
  bool non_blocking = false;
  const std::map<std::string, Check> checks = {{"exact", Check::kExact}, {"identical", Check::kIdentical}};
  app.add_option("-p,--processes", options.processes, "Processes")->check(CLI::Range(1, 64));
  app.add_option("-t,--threads", options.threads, "Threads of a process")->check(CLI::Range(1, 64));
  app.add_option("-g,--devices", options.devices, "Devices of a thread, one rank each")
      ->check(CLI::Range(1, 64));
  app.add_option("-n,--iterations", options.iterations, "Allreduces of each kind")
      ->check(CLI::Range(1, 10000))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("-m,--aggregated", options.aggregated, "Allreduces of a communicator in one group")
      ->check(CLI::Range(1, 64));
  app.add_option("-c,--counts", options.counts, "Elements")->delimiter(',');
  app.add_option("-d,--types", options.types, "float, half, bfloat16")
      ->delimiter(',')
      ->check(CLI::IsMember({"float", "half", "bfloat16"}));
  app.add_option("-o,--ops", options.ops, "sum, avg")->delimiter(',')->check(CLI::IsMember({"sum", "avg"}));
  app.add_flag("-G,--graph", options.graph, "Capture a graph and launch it");
  app.add_flag("--non-blocking", non_blocking, "Communicators with blocking=0");
  app.add_option("--check", options.check,
                 "exact: results are the sums; identical: all ranks have the same bytes, and the mean of the "
                 "results over the "
                 "iterations comes closer than the first")
      ->transform(CLI::CheckedTransformer(checks, CLI::ignore_case));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *status = app.exit(error);
    return std::nullopt;
  }
  options.blocking = !non_blocking;
  return options;
}

}  // namespace onebit::nccl_client
