// transport_perf: bandwidth and latency of a transport between two processes, to be held against iperf3.
//
//   transport_perf --listen 5301                    on one side
//   transport_perf --connect 10.0.0.1:5301 --flows 4   on the other, which sends
//
// A tool, not a service: the two sides exchange the transport's Handle through a plain TCP connection on that
// port. The connecting side sends `--size` messages with `--inflight` of them under way, each in a buffer of
// its own unless `--buffers` says less, for `--seconds`; then both bounce a message of 8 bytes. Bandwidth is
// what the listening side has received, by its clock; latency is half a round trip, the median; CPU seconds
// are those of both processes.
#include <poll.h>
#include <sys/resource.h>

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "transport/factory.h"

namespace {

using onebit::Code;
using onebit::Deadline;
using onebit::Result;
using onebit::SocketAddress;
using onebit::Status;
using onebit::UniqueSocket;
using namespace onebit::transport;  // NOLINT: a program of one file
using Clock = std::chrono::steady_clock;

/// What the connecting side wants, as the hello of the connection; both sides are the same program.
struct Plan {
  std::uint64_t size = 1 << 20;
  std::uint32_t inflight = 8;
  std::uint32_t pings = 20'000;
  std::uint32_t buffers = 0;  ///< 0 = one for each message under way
  std::uint32_t polls = 0;    ///< 1: wait by asking again and again, 0: by sleeping
};
/// What the listening side has measured.
struct Outcome {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
};

constexpr std::uint64_t kDataTag = 1;
constexpr std::uint64_t kPingTag = 2;
constexpr std::uint64_t kOutcomeTag = 3;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Status wait_for(int fd, short events) {
  pollfd entry{fd, events, 0};
  while (::poll(&entry, 1, 60'000) < 0 && errno == EINTR) {
  }
  return entry.revents != 0 ? Status() : Status(Code::kTimeout, "nothing came for 60 s");
}

/// Sends or receives all of a small thing over the plain connection.
template <typename Call, typename Byte>
Status all_of(int fd, short events, Call call, Byte* at, std::size_t bytes) {
  while (bytes > 0) {
    ONEBIT_RETURN_IF_ERROR(wait_for(fd, events));
    const ssize_t moved = call(fd, at, bytes, 0);
    if (moved == 0) return Status(Code::kRemoteError, "the other side has gone");
    if (moved < 0 && errno != EAGAIN && errno != EINTR) return Status::system(errno, "plain connection");
    if (moved < 0) continue;
    at += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return Status();
}

/// One end, connected, with the way to wait for a request.
class Line {
 public:
  Line(std::unique_ptr<Context> context, std::unique_ptr<Endpoint> endpoint, const Plan& plan)
      : context_(std::move(context)), endpoint_(std::move(endpoint)), timeout_(plan.polls != 0 ? 0 : -1) {}
  Endpoint& endpoint() { return *endpoint_; }
  Status progress() {
    ONEBIT_RETURN_IF_ERROR(context_->progress(timeout_, completed_));
    completed_.clear();
    return endpoint_->status();
  }
  Status wait(const Request& request) {
    while (request.state == Request::State::kPending) ONEBIT_RETURN_IF_ERROR(progress());
    return endpoint_->status();
  }
  Status send(const void* data, std::size_t bytes, std::uint64_t tag) {
    Request request;
    ONEBIT_RETURN_IF_ERROR(endpoint_->send(request, data, bytes, tag, 0));
    return wait(request);
  }
  Status receive(void* data, std::size_t bytes, std::uint64_t tag) {
    Request request;
    ONEBIT_RETURN_IF_ERROR(endpoint_->receive(request, data, bytes, tag, 0));
    return wait(request);
  }
  Status finish() {
    endpoint_->finish();
    while (!endpoint_->closed()) ONEBIT_RETURN_IF_ERROR(progress());
    return endpoint_->status();
  }

 private:
  std::unique_ptr<Context> context_;
  std::unique_ptr<Endpoint> endpoint_;
  std::chrono::milliseconds timeout_;
  std::vector<Request*> completed_;
};

std::vector<std::vector<std::byte>> buffers(const Plan& plan) {
  const std::uint32_t count = plan.buffers > 0 ? plan.buffers : plan.inflight;
  return std::vector<std::vector<std::byte>>(count, std::vector<std::byte>(plan.size, std::byte{0x5A}));
}

Status bounce(Line& line, const Plan& plan, bool first, std::vector<double>& half_trips) {
  std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < plan.pings; ++i) {
    const auto start = Clock::now();
    if (first) ONEBIT_RETURN_IF_ERROR(line.send(&value, sizeof value, kPingTag));
    ONEBIT_RETURN_IF_ERROR(line.receive(&value, sizeof value, kPingTag));
    if (!first) ONEBIT_RETURN_IF_ERROR(line.send(&value, sizeof value, kPingTag));
    half_trips.push_back(since(start) * 1e6 / 2);
  }
  return Status();
}

/// The listening side: receives until an empty message, reports, bounces.
Status serve(Line& line, const Plan& plan) {
  auto memory = buffers(plan);
  std::vector<Request> requests(plan.inflight);
  const auto post = [&](std::size_t i) {
    return line.endpoint().receive(requests[i], memory[i % memory.size()].data(), plan.size, kDataTag, 0);
  };
  for (std::size_t i = 0; i < requests.size(); ++i) ONEBIT_RETURN_IF_ERROR(post(i));
  Outcome outcome;
  Clock::time_point start;
  double cpu_start = 0;
  std::size_t ended = 0;
  for (std::size_t i = 0; ended < requests.size(); i = (i + 1) % requests.size()) {
    ONEBIT_RETURN_IF_ERROR(line.wait(requests[i]));
    if (requests[i].bytes == 0) {
      ++ended;  // the sender ends with one empty message for each posted receive
      if (ended > 1) continue;
      outcome.seconds = since(start);
      outcome.cpu_seconds = cpu_seconds() - cpu_start;
      continue;
    }
    if (start == Clock::time_point()) {
      start = Clock::now();
      cpu_start = cpu_seconds();
    } else {
      outcome.bytes += requests[i].bytes;
    }
    ONEBIT_RETURN_IF_ERROR(post(i));
  }
  ONEBIT_RETURN_IF_ERROR(line.send(&outcome, sizeof outcome, kOutcomeTag));
  std::vector<double> ignored;
  ONEBIT_RETURN_IF_ERROR(bounce(line, plan, false, ignored));
  return line.finish();
}

Status drive(Line& line, const Plan& plan, double seconds, Outcome& outcome, double& own_cpu,
             std::vector<double>& half_trips) {
  auto memory = buffers(plan);
  std::vector<Request> requests(plan.inflight);
  const double cpu_start = cpu_seconds();
  const auto start = Clock::now();
  std::size_t i = 0;
  for (; since(start) < seconds; i = (i + 1) % requests.size()) {
    ONEBIT_RETURN_IF_ERROR(line.wait(requests[i]));
    ONEBIT_RETURN_IF_ERROR(
        line.endpoint().send(requests[i], memory[i % memory.size()].data(), plan.size, kDataTag, 0));
  }
  for (const Request& request : requests) ONEBIT_RETURN_IF_ERROR(line.wait(request));
  own_cpu = cpu_seconds() - cpu_start;
  for (std::size_t k = 0; k < requests.size(); ++k) ONEBIT_RETURN_IF_ERROR(line.send(nullptr, 0, kDataTag));
  ONEBIT_RETURN_IF_ERROR(line.receive(&outcome, sizeof outcome, kOutcomeTag));
  ONEBIT_RETURN_IF_ERROR(bounce(line, plan, true, half_trips));
  return line.finish();
}

Status run_listen(std::uint16_t port, const onebit::Settings& settings, std::uint32_t flows) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  ONEBIT_ASSIGN_OR_RETURN(
      const UniqueSocket listener,
      onebit::listen_on(SocketAddress(reinterpret_cast<const sockaddr*>(&any), sizeof any), {}));
  SocketAddress peer;
  UniqueSocket plain;
  while (!plain) {
    ONEBIT_RETURN_IF_ERROR(wait_for(listener.get(), POLLIN));
    ONEBIT_ASSIGN_OR_RETURN(plain, onebit::accept_from(listener.get(), &peer));
  }
  ONEBIT_ASSIGN_OR_RETURN(const auto choice, onebit::transport::choose(settings));
  ONEBIT_ASSIGN_OR_RETURN(auto context, make_context(choice.transport, settings, peer, flows));
  ONEBIT_ASSIGN_OR_RETURN(auto listening, context->listen(0));
  const Handle& handle = listening->handle();
  ONEBIT_RETURN_IF_ERROR(all_of(plain.get(), POLLOUT, ::send, handle.bytes.data(), handle.bytes.size()));
  std::unique_ptr<Endpoint> endpoint;
  std::vector<Request*> completed;
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(30)); !endpoint;) {
    if (deadline.passed()) return Status(Code::kTimeout, "the other side does not connect");
    ONEBIT_RETURN_IF_ERROR(context->progress(std::chrono::milliseconds(100), completed));
    ONEBIT_ASSIGN_OR_RETURN(endpoint, listening->accept());
  }
  Plan plan;
  if (endpoint->hello().size() != sizeof plan) return Status(Code::kDataError, "another transport_perf");
  std::memcpy(&plan, endpoint->hello().data(), sizeof plan);
  Line line(std::move(context), std::move(endpoint), plan);
  return serve(line, plan);
}

Status run_connect(const std::string& where, const Plan& plan, const onebit::Settings& settings,
                   std::uint32_t flows, double seconds, const std::string& json_file) {
  const auto colon = where.rfind(':');
  if (colon == std::string::npos) return Status(Code::kInvalidArgument, "--connect takes HOST:PORT");
  const int port = std::atoi(where.c_str() + colon + 1);
  if (port <= 0 || port > 65535) return Status(Code::kInvalidArgument, "--connect takes HOST:PORT");
  ONEBIT_ASSIGN_OR_RETURN(
      const auto addresses,
      onebit::resolve(where.substr(0, colon), static_cast<std::uint16_t>(port), onebit::SocketFamily::kIPv4));
  ONEBIT_ASSIGN_OR_RETURN(const UniqueSocket plain, onebit::start_connect(addresses[0], {}));
  ONEBIT_RETURN_IF_ERROR(wait_for(plain.get(), POLLOUT));
  if (const int error = onebit::connect_error(plain.get()); error != 0) {
    return Status::system(error, "connect to " + where);
  }
  Handle handle;
  ONEBIT_RETURN_IF_ERROR(all_of(plain.get(), POLLIN, ::recv, handle.bytes.data(), handle.bytes.size()));
  ONEBIT_ASSIGN_OR_RETURN(const auto choice, onebit::transport::choose(settings));
  ONEBIT_ASSIGN_OR_RETURN(auto context, make_context(choice.transport, settings, addresses[0], flows));
  ONEBIT_ASSIGN_OR_RETURN(auto endpoint, context->connect(0, handle, std::as_bytes(std::span(&plan, 1))));
  std::vector<Request*> completed;
  while (endpoint->state() == Endpoint::State::kConnecting) {
    ONEBIT_RETURN_IF_ERROR(context->progress(std::chrono::milliseconds(100), completed));
  }
  ONEBIT_RETURN_IF_ERROR(endpoint->status());
  Line line(std::move(context), std::move(endpoint), plan);
  Outcome outcome;
  double own_cpu = 0;
  std::vector<double> half_trips;
  ONEBIT_RETURN_IF_ERROR(drive(line, plan, seconds, outcome, own_cpu, half_trips));

  std::sort(half_trips.begin(), half_trips.end());
  const double latency = half_trips.empty() ? 0 : half_trips[half_trips.size() / 2];
  const double bandwidth = static_cast<double>(outcome.bytes) * 8 / outcome.seconds / 1e9;
  const double gigabytes = static_cast<double>(outcome.bytes) / 1e9;
  const double cpu = (outcome.cpu_seconds + own_cpu) / gigabytes;
  fmt::print("{:>10} {:>6} {:>9} {:>17} {:>13} {:>12} {:>12}\n", "size(B)", "flows", "inflight",
             "bandwidth(Gbit/s)", "latency(us)", "send(s/GB)", "recv(s/GB)");
  fmt::print("{:>10} {:>6} {:>9} {:>17.2f} {:>13.2f} {:>12.3f} {:>12.3f}\n", plan.size, flows, plan.inflight,
             bandwidth, latency, own_cpu / gigabytes, outcome.cpu_seconds / gigabytes);
  if (json_file.empty()) return Status();
  std::ofstream file(json_file);
  file << nlohmann::json{{"size", plan.size},           {"flows", flows},        {"inflight", plan.inflight},
                         {"bandwidth_gbps", bandwidth}, {"latency_us", latency}, {"cpu_s_per_gb", cpu}}
              .dump(2)
       << '\n';
  return file.flush() ? Status() : Status::error(Code::kSystemError, "cannot write {}", json_file);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Bandwidth and latency of a transport of onebit (ONEBIT_TRANSPORT) between two processes");
  std::uint16_t port = 0;
  std::string where;
  std::string json_file;
  std::uint32_t flows = 1;
  double seconds = 5;
  bool polls = false;
  Plan plan;
  app.add_option("--listen", port, "Wait on this port for the other side, once");
  app.add_option("--connect", where, "HOST:PORT of the listening side");
  app.add_option("--size", plan.size, "Bytes a message")
      ->check(CLI::Range(1ULL, 1ULL << 30))
      ->capture_default_str();
  app.add_option("--inflight", plan.inflight, "Messages under way")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--buffers", plan.buffers,
                 "Buffers that the messages take turns in; 0 = one for each message under way, as a job has. "
                 "(iperf3 has one of 128 KiB a flow, which stays in the caches)")
      ->capture_default_str();
  app.add_option("--flows", flows, "TCP connections")->check(CLI::Range(1, 32))->capture_default_str();
  app.add_option("--seconds", seconds, "How long to send")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--pings", plan.pings, "Round trips of 8 bytes")->capture_default_str();
  app.add_flag("--poll", polls, "Never sleep, on both sides (rdma's own programs do not, either)");
  app.add_option("--json", json_file, "Write the result to this file");
  CLI11_PARSE(app, argc, argv);
  plan.polls = polls ? 1 : 0;
  if ((port == 0) == where.empty()) {
    fmt::print(stderr, "transport_perf: give one of --listen PORT and --connect HOST:PORT\n");
    return 2;
  }
  auto settings = onebit::Settings::from_environment();
  Status status = settings.status();
  if (settings.ok()) {
    settings->tcp_flows = 0;  // --flows says it
    status = port != 0 ? run_listen(port, *settings, flows)
                       : run_connect(where, plan, *settings, flows, seconds, json_file);
  }
  if (status.ok()) return 0;
  fmt::print(stderr, "transport_perf: {}\n", status.message());
  return 1;
}
