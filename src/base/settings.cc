#include "base/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "base/unique_fd.h"

namespace onebit {
namespace {

std::string show_duration(std::chrono::milliseconds value) {
  const auto count = value.count();
  return count % 1000 == 0 ? formatted("{}s", count / 1000) : formatted("{}ms", count);
}

// Makers of the parse/show pair of a row, one a type. M is a pointer to a member of Settings.
using Parse = std::function<Status(Settings&, std::string_view)>;
using Show = std::function<std::string(const Settings&)>;

Parse text_parser(std::string Settings::*member) {
  return [member](Settings& s, std::string_view v) {
    s.*member = std::string(v);
    return Status();
  };
}
Show text_shower(std::string Settings::*member) {
  return [member](const Settings& s) { return s.*member; };
}

Parse number_parser(std::uint32_t Settings::*member, std::uint32_t low, std::uint32_t high) {
  return [=](Settings& s, std::string_view v) {
    ONEBIT_ASSIGN_OR_RETURN(const std::uint64_t value, parse_unsigned(v, low, high));
    s.*member = static_cast<std::uint32_t>(value);
    return Status();
  };
}
Show number_shower(std::uint32_t Settings::*member) {
  return [member](const Settings& s) { return std::to_string(s.*member); };
}

Parse size_parser(std::uint64_t Settings::*member) {
  return [=](Settings& s, std::string_view v) {
    ONEBIT_ASSIGN_OR_RETURN(s.*member, parse_size(v));
    return Status();
  };
}
Show size_shower(std::uint64_t Settings::*member) {
  return [member](const Settings& s) { return std::to_string(s.*member); };
}

/// A socket buffer's size, where NCCL's variables have -1 for the system's own tuning.
Parse socket_buffer_parser(std::uint64_t Settings::*member) {
  return [=](Settings& s, std::string_view v) {
    if (v == "-1") {
      s.*member = 0;
      return Status();
    }
    ONEBIT_ASSIGN_OR_RETURN(s.*member, parse_size(v));
    return Status();
  };
}

Parse duration_parser(std::chrono::milliseconds Settings::*member) {
  return [=](Settings& s, std::string_view v) {
    ONEBIT_ASSIGN_OR_RETURN(s.*member, parse_duration(v));
    return Status();
  };
}
Show duration_shower(std::chrono::milliseconds Settings::*member) {
  return [member](const Settings& s) { return show_duration(s.*member); };
}

template <typename E>
struct Choice {
  std::string_view word;
  E value;
};
template <typename E, std::size_t N>
Parse choice_parser(E Settings::*member, std::array<Choice<E>, N> choices) {
  return [=](Settings& s, std::string_view v) {
    for (const auto& choice : choices) {
      if (choice.word == v) {
        s.*member = choice.value;
        return Status();
      }
    }
    std::string words;
    for (const auto& choice : choices) words += formatted("{}{}", words.empty() ? "" : ", ", choice.word);
    return Status::error(Code::kInvalidArgument, "one of {}", words);
  };
}
template <typename E, std::size_t N>
Show choice_shower(E Settings::*member, std::array<Choice<E>, N> choices) {
  return [=](const Settings& s) {
    for (const auto& choice : choices) {
      if (choice.value == s.*member) return std::string(choice.word);
    }
    return std::string("?");
  };
}

constexpr std::array<Choice<bool>, 2> kScales{{{"rms", false}, {"mean", true}}};
constexpr std::array<Choice<bool>, 2> kResidualTypes{{{"float", false}, {"bfloat16", true}}};
constexpr std::array<Choice<TwoLevel>, 3> kTwoLevels{
    {{"auto", TwoLevel::kAuto}, {"off", TwoLevel::kOff}, {"on", TwoLevel::kOn}}};
constexpr std::array<Choice<SocketFamily>, 3> kFamilies{
    {{"any", SocketFamily::kAny}, {"AF_INET", SocketFamily::kIPv4}, {"AF_INET6", SocketFamily::kIPv6}}};
constexpr std::array<Choice<LogLevel>, 4> kLevels{{{"NONE", LogLevel::kNone},
                                                   {"WARN", LogLevel::kWarn},
                                                   {"INFO", LogLevel::kInfo},
                                                   {"TRACE", LogLevel::kTrace}}};

Status parse_port_range(Settings& s, std::string_view v) {
  const auto dash = v.find('-');
  const auto first = parse_unsigned(v.substr(0, dash), 0, 65535);
  const auto last = dash == std::string_view::npos ? first : parse_unsigned(v.substr(dash + 1), 0, 65535);
  if (!first.ok() || !last.ok() || *first > *last || (*first == 0) != (*last == 0)) {
    return Status(Code::kInvalidArgument, "a port, or two as in 20000-20100; 0 lets the system choose");
  }
  s.port_range = {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
  return Status();
}

Status parse_gid_index(Settings& s, std::string_view v) {
  if (v == "-1") {
    s.ib_gid_index = -1;
    return Status();
  }
  const auto value = parse_unsigned(v, 0, 65535);
  if (!value.ok()) return Status(Code::kInvalidArgument, "a whole number from 0 to 65535, or -1");
  s.ib_gid_index = static_cast<std::int32_t>(*value);
  return Status();
}

/// The contents of a regular file of at most 64 KiB; anything else may block or never end.
std::optional<std::string> read_small_file(std::string_view path) {
  constexpr std::size_t kMost = std::size_t{64} << 10;
  const UniqueFd fd(::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::string contents(kMost + 1, '\0');
  std::size_t have = 0;
  while (have < contents.size()) {
    const ssize_t got = ::read(fd.get(), contents.data() + have, contents.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > kMost) return std::nullopt;
  contents.resize(have);
  return contents;
}

Status parse_secret_file(Settings& s, std::string_view path) {
  std::optional<std::string> secret = read_small_file(path);
  while (secret && !secret->empty() && (secret->back() == '\n' || secret->back() == '\r')) secret->pop_back();
  if (!secret || secret->empty()) {
    return Status(Code::kInvalidArgument, "a readable file of up to 64 KiB with the secret");
  }
  if (s.secret.empty()) s.secret = std::move(*secret);  // ONEBIT_SECRET wins
  return Status();
}

std::vector<SettingRow> make_rows() {
  return {
      {"ONEBIT_COMPRESS", "", "rules, see below",
       "Which tagged allreduces are compressed; the first rule that matches decides. NCCL jobs under the "
       "shim: "
       "none while it is unset, and calls without a tag have the tag `untagged`.",
       text_parser(&Settings::compress), text_shower(&Settings::compress)},
      {"ONEBIT_MIN_SIZE", "", "bytes, with K, M or G", "Smaller calls always go the exact way.",
       size_parser(&Settings::min_size), size_shower(&Settings::min_size)},
      {"ONEBIT_BLOCK", "", "`whole`, or a power of two from 256 to 65536",
       "Elements that share one scale; `whole` is one scale a buffer, as in the papers.",
       [](Settings& s, std::string_view v) {
         ONEBIT_ASSIGN_OR_RETURN(s.block, parse_block(v));
         return Status();
       },
       [](const Settings& s) { return s.block == 0 ? "whole" : std::to_string(s.block); }},
      {"ONEBIT_SCALE", "", "`rms` or `mean`",
       "The scale of a block: `rms` is the papers'; `mean` always contracts but gives residuals back more "
       "slowly.",
       choice_parser(&Settings::scale_is_mean, kScales), choice_shower(&Settings::scale_is_mean, kScales)},
      {"ONEBIT_CHUNK", "", "elements, with K, M or G; 0 = automatic",
       "The unit of pipelining inside a partition, rounded up to whole blocks.",
       size_parser(&Settings::chunk), size_shower(&Settings::chunk)},
      {"ONEBIT_PIPELINE_DEPTH", "", "a whole number from 1 to 64",
       "Chunks in flight; buffers take about this many chunks of every rank.",
       number_parser(&Settings::pipeline_depth, 1, 64), number_shower(&Settings::pipeline_depth)},
      {"ONEBIT_THREADS", "", "a whole number from 0 to 256; 0 = automatic",
       "Compute threads of a communicator beside the one that moves data. Automatic: the cores that this "
       "process may "
       "use, divided by the ranks on this machine, at most 8.",
       number_parser(&Settings::threads, 0, 256), number_shower(&Settings::threads)},
      {"ONEBIT_CODEC_IMPL", "", "`auto`, `scalar`, or a SIMD target such as `avx2` or `avx512`",
       "The implementation of the codec and of the optimizers' passes. All give the same bits.",
       text_parser(&Settings::codec_impl), text_shower(&Settings::codec_impl)},
      {"ONEBIT_TRANSPORT", "", "`auto`, `tcp`, `verbs`, `ucx` or `nccl`",
       "What carries the data between ranks: docs/transports.md. For the allreduces of an NCCL job, `auto` "
       "is "
       "NCCL.",
       [](Settings& s, std::string_view v) {
         constexpr std::array<std::string_view, 5> kNames{"auto", "tcp", "verbs", "ucx", "nccl"};
         if (std::find(kNames.begin(), kNames.end(), v) == kNames.end())
           return Status(Code::kInvalidArgument, "one of auto, tcp, verbs, ucx, nccl");
         s.transport = std::string(v);
         return Status();
       },
       text_shower(&Settings::transport)},
      {"ONEBIT_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
       "names with commas; a leading ^ excludes, = asks for exact names",
       "The network interfaces to use, by prefix. Unset: up and running ones, not docker, virbr or "
       "link-local; loopback "
       "only when there is no other or when the master is on it.",
       text_parser(&Settings::socket_ifname), text_shower(&Settings::socket_ifname)},
      {"ONEBIT_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY", "`any`, `AF_INET` or `AF_INET6`",
       "The address family to use.", choice_parser(&Settings::socket_family, kFamilies),
       choice_shower(&Settings::socket_family, kFamilies)},
      {"ONEBIT_PORT_RANGE", "", "a port, or two as in `20000-20100`; 0 = any",
       "The ports that this rank listens on (a firewall's open range).", parse_port_range,
       [](const Settings& s) {
         return s.port_range.first == 0 ? std::string("0")
                                        : formatted("{}-{}", s.port_range.first, s.port_range.last);
       }},
      {"ONEBIT_TCP_FLOWS", "NCCL_NSOCKS_PERTHREAD", "a whole number from 0 to 32; 0 = automatic",
       "TCP connections to each peer. Automatic: 2 up to 16 ranks, else 1. Raise it where one connection "
       "cannot fill the "
       "link, as in clouds that limit each.",
       number_parser(&Settings::tcp_flows, 0, 32), number_shower(&Settings::tcp_flows)},
      {"ONEBIT_TCP_SNDBUF", "NCCL_SOCKET_SNDBUF", "bytes, with K, M or G; 0 = the system's own tuning",
       "SO_SNDBUF of each connection.", socket_buffer_parser(&Settings::tcp_sndbuf),
       size_shower(&Settings::tcp_sndbuf)},
      {"ONEBIT_TCP_RCVBUF", "NCCL_SOCKET_RCVBUF", "bytes, with K, M or G; 0 = the system's own tuning",
       "SO_RCVBUF of each connection.", socket_buffer_parser(&Settings::tcp_rcvbuf),
       size_shower(&Settings::tcp_rcvbuf)},
      {"ONEBIT_TCP_ZEROCOPY", "", "bytes, with K, M or G; 0 = never",
       "Messages from this size on are sent without being copied into the kernel (MSG_ZEROCOPY). Saves "
       "processor time where the network device can gather; the kernel copies all the same, and that is then "
       "given up, on loopback and virtual devices. Measure with perf/net_plugin_perf.",
       size_parser(&Settings::tcp_zerocopy), size_shower(&Settings::tcp_zerocopy)},
      {"ONEBIT_TRAFFIC_CLASS", "", "a whole number from 0 to 255; 0 = the system's own",
       "The traffic class (IP_TOS, IPV6_TCLASS: 4 times the DSCP) of each connection. The NCCL plugin takes "
       "the communicator's trafficClass where this is 0.",
       number_parser(&Settings::traffic_class, 0, 255), number_shower(&Settings::traffic_class)},
      {"ONEBIT_SPIN_US", "", "microseconds, from 0 to 1000000",
       "How long a rank that waits in a small call (up to 1 MiB) polls, giving way to others, before it "
       "sleeps. 0 saves the most CPU time.",
       number_parser(&Settings::spin_us, 0, 1'000'000), number_shower(&Settings::spin_us)},
      {"ONEBIT_IB_HCA", "NCCL_IB_HCA",
       "names with commas, each with an optional :port; a leading ^ excludes, = asks for exact names",
       "The RDMA ports to use, by prefix. A rank's connections stripe over up to four of those that are "
       "named. "
       "Unset: a rank uses the first that is active, the NCCL plugin offers all.",
       text_parser(&Settings::ib_hca), text_shower(&Settings::ib_hca)},
      {"ONEBIT_IB_GID_INDEX", "NCCL_IB_GID_INDEX", "a whole number from 0 to 65535; -1 = automatic",
       "Which address of an RDMA port to use. Automatic: of RoCE v2 the first IPv4 one (with "
       "ONEBIT_SOCKET_FAMILY="
       "AF_INET6, IPv6), else the next best.",
       parse_gid_index, [](const Settings& s) { return std::to_string(s.ib_gid_index); }},
      {"ONEBIT_IB_TC", "NCCL_IB_TC", "a whole number from 0 to 255", "The traffic class of RDMA packets.",
       number_parser(&Settings::ib_tc, 0, 255), number_shower(&Settings::ib_tc)},
      {"ONEBIT_IB_SL", "NCCL_IB_SL", "a whole number from 0 to 15", "The service level of RDMA packets.",
       number_parser(&Settings::ib_sl, 0, 15), number_shower(&Settings::ib_sl)},
      {"ONEBIT_IB_PKEY", "NCCL_IB_PKEY", "a whole number from 0 to 65535",
       "The index of the partition key of RDMA connections.", number_parser(&Settings::ib_pkey, 0, 65535),
       number_shower(&Settings::ib_pkey)},
      {"ONEBIT_IB_TIMEOUT", "NCCL_IB_TIMEOUT", "a whole number from 1 to 31",
       "How long an RDMA device waits for an answer before it sends again: 4.096 us * 2^n. With 7 retries, "
       "18 "
       "finds a dead link after some 10 s.",
       number_parser(&Settings::ib_timeout, 1, 31), number_shower(&Settings::ib_timeout)},
      {"ONEBIT_IB_RETRY_CNT", "NCCL_IB_RETRY_CNT", "a whole number from 0 to 7",
       "How often it sends again before the connection counts as lost.",
       number_parser(&Settings::ib_retries, 0, 7), number_shower(&Settings::ib_retries)},
      {"ONEBIT_IB_QPS_PER_CONNECTION", "NCCL_IB_QPS_PER_CONNECTION", "a whole number from 1 to 16",
       "Queue pairs for data of each RDMA connection on each of its ports, beside the one for messages. "
       "Raise "
       "it where the network spreads load by queue pair.",
       number_parser(&Settings::ib_pairs, 1, 16), number_shower(&Settings::ib_pairs)},
      {"ONEBIT_NET_SPEED", "", "Mbit/s, from 0 to 10000000; 0 = as the system says",
       "What the NCCL plugin tells NCCL of the speed of each interface. For virtual machines, whose "
       "interfaces do not know it.",
       number_parser(&Settings::net_speed, 0, 10'000'000), number_shower(&Settings::net_speed)},
      {"ONEBIT_CONNECT_RETRIES", "NCCL_SOCKET_RETRY_CNT", "a whole number from 0 to 10000",
       "How often the NCCL plugin tries again to connect to a peer that refuses or cannot be reached.",
       number_parser(&Settings::connect_retries, 0, 10'000), number_shower(&Settings::connect_retries)},
      {"ONEBIT_CONNECT_RETRY_MSEC", "NCCL_SOCKET_RETRY_SLEEP_MSEC", "milliseconds, from 0 to 60000",
       "The pause before the first of these tries; before the n-th it is n times as long.",
       number_parser(&Settings::connect_retry_ms, 0, 60'000), number_shower(&Settings::connect_retry_ms)},
      {"ONEBIT_INIT_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long set-up waits for all ranks before it fails and names the missing ones.",
       duration_parser(&Settings::init_timeout), duration_shower(&Settings::init_timeout)},
      {"ONEBIT_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long a call waits without any progress before it fails and names the ranks it waits for.",
       duration_parser(&Settings::timeout), duration_shower(&Settings::timeout)},
      {"ONEBIT_LINK_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long the network to a peer may be dead before its connection counts as lost.",
       duration_parser(&Settings::link_timeout), duration_shower(&Settings::link_timeout)},
      {"ONEBIT_SECRET", "", "text",
       "The job's secret: only ranks that know it can join. Wins over ONEBIT_SECRET_FILE.",
       text_parser(&Settings::secret), [](const Settings& s) { return s.secret.empty() ? "" : "(set)"; }},
      {"ONEBIT_SECRET_FILE", "", "the path of a readable file", "A file that holds the secret.",
       parse_secret_file, [](const Settings&) { return std::string(); }},
      {"ONEBIT_JOB_ID", "", "text",
       "Tells two jobs apart that share a master address. Unset: the launcher's (TORCHELASTIC_RUN_ID, "
       "SLURM_JOB_ID and step, OMPI_MCA_ess_base_jobid, PMIX_NAMESPACE or PMI_JOBID).",
       text_parser(&Settings::job_id), text_shower(&Settings::job_id)},
      {"ONEBIT_MASTER_PORT", "", "a port; 0 = MASTER_PORT, or made from it or from the job id",
       "The port of rank 0 where all ranks meet. Automatic: MASTER_PORT; under torchrun, whose own store has "
       "that port, and under Slurm and Open MPI without MASTER_PORT, one above 61000 made from MASTER_PORT "
       "or "
       "the job id.",
       number_parser(&Settings::master_port, 0, 65535), number_shower(&Settings::master_port)},
      {"ONEBIT_WARMUP_CALLS", "", "a whole number",
       "NCCL jobs: the first calls of each tag, or of each size without one, go the exact way.",
       number_parser(&Settings::warmup_calls, 0, std::numeric_limits<std::uint32_t>::max()),
       number_shower(&Settings::warmup_calls)},
      {"ONEBIT_RESIDUAL_TYPE", "", "`float` or `bfloat16`",
       "NCCL jobs: how residuals are kept in device memory; `bfloat16` takes half of it and rounds them.",
       choice_parser(&Settings::residuals_are_bfloat16, kResidualTypes),
       choice_shower(&Settings::residuals_are_bfloat16, kResidualTypes)},
      {"ONEBIT_TWO_LEVEL", "", "`auto`, `off` or `on`",
       "NCCL jobs whose ranks share nodes: allreduces and reduce-scatters are exact inside of a node and in "
       "1 bit between nodes. `auto` does "
       "so where all nodes have as many ranks, and several; `on` also warns where that is not so.",
       choice_parser(&Settings::two_level, kTwoLevels), choice_shower(&Settings::two_level, kTwoLevels)},
      {"ONEBIT_NCCL_LIBRARY", "", "the path of a library",
       "The NCCL whose functions libonebit-nccl.so and optimizers in a GPU's memory call. Unset: the one "
       "that "
       "the job has loaded.",
       text_parser(&Settings::nccl_library), text_shower(&Settings::nccl_library)},
      {"ONEBIT_CUDA_LIBRARY", "", "the path of a library",
       "libonebit-cuda.so. Unset: the one beside libonebit-nccl.so or libonebit.so.",
       text_parser(&Settings::cuda_library), text_shower(&Settings::cuda_library)},
      {"ONEBIT_DEBUG", "", "`NONE`, `WARN`, `INFO` or `TRACE`",
       "What is logged to stderr. INFO also says why a call went the exact way.",
       choice_parser(&Settings::debug, kLevels), choice_shower(&Settings::debug, kLevels)},
  };
}

/// The variable that decides `row`, and its value; null if none is set. An empty value counts as unset.
const char* value_of(const SettingRow& row, std::string_view* origin) {
  for (const std::string_view name : {row.name, row.nccl_name}) {
    if (name.empty()) continue;
    const char* value = std::getenv(std::string(name).c_str());
    if (value != nullptr && *value != '\0') {
      *origin = name;
      return value;
    }
  }
  return nullptr;
}

Status parse_row(const SettingRow& row, Settings& settings, std::string_view origin, std::string_view value) {
  const Status status = row.parse(settings, value);
  if (status.ok()) return status;
  return Status::error(Code::kInvalidArgument, "{}={}: accepted is {}", origin,
                       row.name == "ONEBIT_SECRET" ? "(secret)" : value, status.message());
}

}  // namespace

std::span<const SettingRow> setting_rows() {
  static const std::vector<SettingRow> rows = make_rows();
  return rows;
}

Result<Settings> Settings::from_environment() {
  Settings settings;
  for (const SettingRow& row : setting_rows()) {
    std::string_view origin;
    const char* value = value_of(row, &origin);
    if (value == nullptr) continue;
    ONEBIT_RETURN_IF_ERROR(parse_row(row, settings, origin, value));
  }
  return settings;
}

Status apply_settings(Settings& settings, std::string_view lines) {
  bool has_secret = false;
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.empty()) continue;
    const auto equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    const auto rows = setting_rows();
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const SettingRow& r) { return r.name == name; });
    if (row == rows.end() || equals == std::string_view::npos) {
      return Status::error(
          Code::kInvalidArgument,
          "'{}' is no setting: accepted are NAME=VALUE lines with the names of docs/settings.md", line);
    }
    if (name == "ONEBIT_SECRET") has_secret = true;
    // These lines win over the environment, whichever of the two it has.
    if (name == "ONEBIT_SECRET_FILE" && !has_secret) settings.secret.clear();
    ONEBIT_RETURN_IF_ERROR(parse_row(*row, settings, name, line.substr(equals + 1)));
  }
  return Status();
}

std::string print_settings(const Settings& settings) {
  std::string text;
  for (const SettingRow& row : setting_rows()) {
    std::string_view origin = "default";
    const bool set = value_of(row, &origin) != nullptr;
    if (row.name == "ONEBIT_SECRET" && !set && !settings.secret.empty()) origin = "ONEBIT_SECRET_FILE";
    text += formatted("{}={}  # {}\n", row.name, row.show(settings), origin);
  }
  return text;
}

}  // namespace onebit
