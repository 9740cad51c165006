// net_plugin_perf: latency and bandwidth of an NCCL net plugin between two processes, without NCCL and
// without a GPU.
//
//   net_plugin_perf --listen 5301                      on one side
//   net_plugin_perf --connect 10.0.0.1:5301            on the other, which sends and prints
//
// The plugin is ours, or any other by --library (a path, or a name for the loader), at the newest version of
// the API that it has, or --api. NCCL's variables choose the interface; --flows sets the number of
// connections for our plugin and for those that follow NCCL's socket variables. The last column is the
// latency of plain send and recv of the same size in the same run. `perf/compare --net-plugin` holds
// bandwidth and CPU time against iperf3. Waiting costs CPU time, too: all of it without --pause, as under
// NCCL.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "measure.h"

namespace {

using onebit::Code;
using onebit::Result;
using onebit::Status;
using namespace onebit::perf;  // NOLINT: a program

struct Options {
  std::uint16_t port = 0;
  std::string where;
  std::string library = "libnccl-net-onebit.so";
  int api = 0;
  int device = 0;
  std::vector<std::string> sizes{"8", "1K", "64K", "1M"};
  std::uint32_t inflight = 8;
  std::uint32_t flows = 1;
  std::uint32_t pings = 2'000;
  double seconds = 2;
  unsigned pause_us = 0;
  std::string json_file;
};

/// What the two sides must agree on: the connecting side's word counts.
struct Plan {
  std::uint64_t size = 0;  ///< 0: that was all
  std::uint32_t inflight = 0;
  std::uint32_t pings = 0;
  double seconds = 0;
};

struct Row {
  Plan plan;
  double latency_us = 0;
  double plain_us = 0;
  Bandwidth bandwidth;
};

Result<std::unique_ptr<onebit::nccl_net::Net>> load(const Options& options) {
  const std::string flows = std::to_string(options.flows);
  ::setenv("ONEBIT_TCP_FLOWS", flows.c_str(), 1);
  ::setenv("NCCL_NSOCKS_PERTHREAD", flows.c_str(), 1);
  ::setenv("NCCL_SOCKET_NTHREADS", "1", 1);
  ONEBIT_ASSIGN_OR_RETURN(auto tables, onebit::nccl_net::load_net_library(options.library));
  for (auto& table : tables) {
    if (options.api == table->version() || (options.api == 0 && table == tables.back()))
      return std::move(table);
  }
  return Status::error(Code::kInvalidArgument, "{} has no version {} of the API", options.library,
                       options.api);
}

Result<Row> measure(Comms& comms, Plain& plain, const Plan& plan, bool first) {
  Row row;
  row.plan = plan;
  // Large messages take longer: fewer rounds.
  const auto rounds =
      static_cast<std::uint32_t>(std::max<std::uint64_t>(10, plan.pings / (1 + plan.size / 16384)));
  ONEBIT_RETURN_IF_ERROR(plain.meet());
  ONEBIT_ASSIGN_OR_RETURN(row.latency_us, latency(comms, plan.size, rounds, first));
  ONEBIT_RETURN_IF_ERROR(plain.meet());
  ONEBIT_ASSIGN_OR_RETURN(row.plain_us, plain_latency(plain, plan.size, rounds, first));
  ONEBIT_ASSIGN_OR_RETURN(row.bandwidth,
                          bandwidth(comms, plain, plan.size, plan.inflight, plan.seconds, first));
  return row;
}

Status serve(Comms& comms, Plain& plain) {
  for (;;) {
    Plan plan;
    ONEBIT_RETURN_IF_ERROR(plain.receive_value(plan));
    if (plan.size == 0) return Status();
    if (auto row = measure(comms, plain, plan, false); !row.ok()) return row.status();
  }
}

Status write_json(const Options& options, const onebit::nccl_net::Net& net, const std::vector<Row>& rows) {
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    results.push_back({{"size", row.plan.size},
                       {"flows", options.flows},
                       {"inflight", row.plan.inflight},
                       {"latency_us", row.latency_us},
                       {"plain_latency_us", row.plain_us},
                       {"bandwidth_gbps", row.bandwidth.gbps},
                       {"cpu_s_per_gb", row.bandwidth.cpu_s_per_gb}});
  }
  std::ofstream file(options.json_file);
  file << nlohmann::json{{"plugin", net.name()}, {"api", net.version()}, {"results", results}}.dump(2)
       << '\n';
  if (file.flush()) return Status();
  return Status::error(Code::kSystemError, "cannot write {}", options.json_file);
}

Status drive(const Options& options, const onebit::nccl_net::Net& net, Comms& comms, Plain& plain) {
  std::vector<Row> rows;
  fmt::print("# plugin {}, API v{}, {} flows, {} in flight\n", net.name(), net.version(), options.flows,
             options.inflight);
  fmt::print("{:>10} {:>6} {:>12} {:>16} {:>14} {:>18}\n", "size(B)", "flows", "latency(us)",
             "bandwidth(Gbit/s)", "cpu(s/GB)", "plain latency(us)");
  for (const std::string& text : options.sizes) {
    ONEBIT_ASSIGN_OR_RETURN(const std::uint64_t size, onebit::parse_size(text));
    if (size < 2 || size > 1ULL << 30) return Status(Code::kInvalidArgument, "--sizes: from 2 bytes to 1G");
    const Plan plan{size, options.inflight, options.pings, options.seconds};
    ONEBIT_RETURN_IF_ERROR(plain.send_value(plan));
    ONEBIT_ASSIGN_OR_RETURN(const Row row, measure(comms, plain, plan, true));
    fmt::print("{:>10} {:>6} {:>12.2f} {:>16.3f} {:>14.3f} {:>18.2f}\n", size, options.flows, row.latency_us,
               row.bandwidth.gbps, row.bandwidth.cpu_s_per_gb, row.plain_us);
    std::fflush(stdout);
    rows.push_back(row);
  }
  ONEBIT_RETURN_IF_ERROR(plain.send_value(Plan{}));
  return options.json_file.empty() ? Status() : write_json(options, net, rows);
}

Status run(const Options& options) {
  ONEBIT_ASSIGN_OR_RETURN(const auto net, load(options));
  const bool first = !options.where.empty();
  const auto colon = options.where.rfind(':');
  std::uint32_t port = options.port;
  if (first) {
    ONEBIT_ASSIGN_OR_RETURN(const std::uint64_t asked, onebit::parse_size(options.where.substr(colon + 1)));
    if (colon == std::string::npos || asked == 0 || asked > 65535) {
      return Status(Code::kInvalidArgument, "--connect takes HOST:PORT");
    }
    port = static_cast<std::uint32_t>(asked);
  }
  ONEBIT_ASSIGN_OR_RETURN(
      Plain plain, first ? Plain::connect(options.where.substr(0, colon), static_cast<std::uint16_t>(port))
                         : Plain::listen(static_cast<std::uint16_t>(port)));
  ONEBIT_ASSIGN_OR_RETURN(
      Comms comms, Comms::make(*net, options.device, plain, std::chrono::microseconds(options.pause_us)));
  ONEBIT_RETURN_IF_ERROR(first ? drive(options, *net, comms, plain) : serve(comms, plain));
  return plain.meet();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Latency and bandwidth of an NCCL net plugin between two processes");
  Options options;
  app.add_option("--listen", options.port, "Wait on this port for the other side, once");
  app.add_option("--connect", options.where, "HOST:PORT of the listening side");
  app.add_option("--library", options.library, "The plugin: a path, or a name for the loader")
      ->capture_default_str();
  app.add_option("--api", options.api, "Version of the API, 6 to 12; 0 = the newest there is")
      ->capture_default_str();
  app.add_option("--device", options.device, "Device of the plugin")->capture_default_str();
  app.add_option("--sizes", options.sizes, "Bytes a message, with K, M or G")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--inflight", options.inflight, "Messages under way")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--flows", options.flows, "TCP connections")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--pings", options.pings, "Round trips of small messages")->capture_default_str();
  app.add_option("--seconds", options.seconds, "How long to send each size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--pause", options.pause_us,
                 "Microseconds to sleep when nothing moves; 0 = give way, as NCCL does")
      ->capture_default_str();
  app.add_option("--json", options.json_file, "Write the results to this file");
  CLI11_PARSE(app, argc, argv);
  if ((options.port == 0) == options.where.empty()) {
    fmt::print(stderr, "net_plugin_perf: give one of --listen PORT and --connect HOST:PORT\n");
    return 2;
  }
  const Status status = run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "net_plugin_perf: {}\n", status.message());
  return 1;
}
