// The table of settings: a row for each, from which it is parsed, shown and documented.

#include <limits>
#include <vector>

#include "base/setting_values.h"
#include "base/settings.h"

namespace onebit {
namespace {

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

/// In the order of the documentation.
std::vector<SettingRow> make_rows() {
  return {
      {"ONEBIT_COMPRESS", "", "rules, see below",
       "Which tagged allreduces are compressed; the first rule that matches decides. NCCL jobs under the "
       "shim: none while it is unset, and calls without a tag have the tag `untagged`.",
       text_value(&Settings::compress)},
      {"ONEBIT_MIN_SIZE", "", "bytes, with K, M or G", "Smaller calls always go the exact way.",
       size_value(&Settings::min_size)},
      {"ONEBIT_BLOCK", "", "`whole`, or a power of two from 256 to 65536",
       "Elements that share one scale; `whole` is one scale a buffer, as in the papers.", block_value()},
      {"ONEBIT_SCALE", "", "`rms` or `mean`",
       "The scale of a block: `rms` is the papers'; `mean` always contracts but gives residuals back more "
       "slowly.",
       choice_value(&Settings::scale_is_mean, kScales)},
      {"ONEBIT_CHUNK", "", "elements, with K, M or G; 0 = automatic",
       "The unit of pipelining inside a partition, rounded up to whole blocks.",
       size_value(&Settings::chunk)},
      {"ONEBIT_PIPELINE_DEPTH", "", "a whole number from 1 to 64",
       "Chunks in flight; buffers take about this many chunks of every rank.",
       number_value(&Settings::pipeline_depth, 1, 64)},
      {"ONEBIT_THREADS", "", "a whole number from 0 to 256; 0 = automatic",
       "Compute threads of a communicator beside the one that moves data. Automatic: the cores that this "
       "process may use, divided by the ranks on this machine, at most 8.",
       number_value(&Settings::threads, 0, 256)},
      {"ONEBIT_CODEC_IMPL", "", "`auto`, `scalar`, or a SIMD target such as `avx2` or `avx512`",
       "The implementation of the codec and of the optimizers' passes. All give the same bits.",
       text_value(&Settings::codec_impl)},
      {"ONEBIT_TRANSPORT", "", "`auto`, `tcp`, `verbs`, `ucx` or `nccl`",
       "What carries the data between ranks: docs/transports.md. For the allreduces of an NCCL job, `auto` "
       "is NCCL.",
       word_value(&Settings::transport, {"auto", "tcp", "verbs", "ucx", "nccl"})},
      {"ONEBIT_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
       "names with commas; a leading ^ excludes, = asks for exact names",
       "The network interfaces to use, by prefix. Unset: up and running ones, not docker, virbr or "
       "link-local; loopback only when there is no other or when the master is on it.",
       text_value(&Settings::socket_ifname)},
      {"ONEBIT_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY", "`any`, `AF_INET` or `AF_INET6`",
       "The address family to use.", choice_value(&Settings::socket_family, kFamilies)},
      {"ONEBIT_PORT_RANGE", "", "a port, or two as in `20000-20100`; 0 = any",
       "The ports that this rank listens on (a firewall's open range).", port_range_value()},
      {"ONEBIT_TCP_FLOWS", "NCCL_NSOCKS_PERTHREAD", "a whole number from 0 to 32; 0 = automatic",
       "TCP connections to each peer. Automatic: 2 up to 16 ranks, else 1. Raise it where one connection "
       "cannot fill the link, as in clouds that limit each.",
       number_value(&Settings::tcp_flows, 0, 32)},
      {"ONEBIT_TCP_SNDBUF", "NCCL_SOCKET_SNDBUF", "bytes, with K, M or G; 0 = the system's own tuning",
       "SO_SNDBUF of each connection.", socket_buffer_value(&Settings::tcp_sndbuf)},
      {"ONEBIT_TCP_RCVBUF", "NCCL_SOCKET_RCVBUF", "bytes, with K, M or G; 0 = the system's own tuning",
       "SO_RCVBUF of each connection.", socket_buffer_value(&Settings::tcp_rcvbuf)},
      {"ONEBIT_TCP_ZEROCOPY", "", "bytes, with K, M or G; 0 = never",
       "Messages from this size on are sent without being copied into the kernel (MSG_ZEROCOPY). Saves "
       "processor time where the network device can gather; the kernel copies all the same, and that is then "
       "given up, on loopback and virtual devices. Measure with perf/net_plugin_perf.",
       size_value(&Settings::tcp_zerocopy)},
      {"ONEBIT_TRAFFIC_CLASS", "", "a whole number from 0 to 255; 0 = the system's own",
       "The traffic class (IP_TOS, IPV6_TCLASS: 4 times the DSCP) of each connection. The NCCL plugin takes "
       "the communicator's trafficClass where this is 0.",
       number_value(&Settings::traffic_class, 0, 255)},
      {"ONEBIT_SPIN_US", "", "microseconds, from 0 to 1000000",
       "How long a rank that waits in a small call (up to 1 MiB) polls, giving way to others, before it "
       "sleeps. 0 saves the most CPU time.",
       number_value(&Settings::spin_us, 0, 1'000'000)},
      {"ONEBIT_IB_HCA", "NCCL_IB_HCA",
       "names with commas, each with an optional :port; a leading ^ excludes, = asks for exact names",
       "The RDMA ports to use, by prefix. A rank's connections stripe over up to four of those that are "
       "named. Unset: a rank uses the first that is active, the NCCL plugin offers all.",
       text_value(&Settings::ib_hca)},
      {"ONEBIT_IB_GID_INDEX", "NCCL_IB_GID_INDEX", "a whole number from 0 to 65535; -1 = automatic",
       "Which address of an RDMA port to use. Automatic: of RoCE v2 the first IPv4 one (with "
       "ONEBIT_SOCKET_FAMILY=AF_INET6, IPv6), else the next best.",
       gid_index_value()},
      {"ONEBIT_IB_TC", "NCCL_IB_TC", "a whole number from 0 to 255", "The traffic class of RDMA packets.",
       number_value(&Settings::ib_tc, 0, 255)},
      {"ONEBIT_IB_SL", "NCCL_IB_SL", "a whole number from 0 to 15", "The service level of RDMA packets.",
       number_value(&Settings::ib_sl, 0, 15)},
      {"ONEBIT_IB_PKEY", "NCCL_IB_PKEY", "a whole number from 0 to 65535",
       "The index of the partition key of RDMA connections.", number_value(&Settings::ib_pkey, 0, 65535)},
      {"ONEBIT_IB_TIMEOUT", "NCCL_IB_TIMEOUT", "a whole number from 1 to 31",
       "How long an RDMA device waits for an answer before it sends again: 4.096 us * 2^n. With 7 retries, "
       "18 finds a dead link after some 10 s.",
       number_value(&Settings::ib_timeout, 1, 31)},
      {"ONEBIT_IB_RETRY_CNT", "NCCL_IB_RETRY_CNT", "a whole number from 0 to 7",
       "How often it sends again before the connection counts as lost.",
       number_value(&Settings::ib_retries, 0, 7)},
      {"ONEBIT_IB_QPS_PER_CONNECTION", "NCCL_IB_QPS_PER_CONNECTION", "a whole number from 1 to 16",
       "Queue pairs for data of each RDMA connection on each of its ports, beside the one for messages. "
       "Raise it where the network spreads load by queue pair.",
       number_value(&Settings::ib_pairs, 1, 16)},
      {"ONEBIT_NET_SPEED", "", "Mbit/s, from 0 to 10000000; 0 = as the system says",
       "What the NCCL plugin tells NCCL of the speed of each interface. For virtual machines, whose "
       "interfaces do not know it.",
       number_value(&Settings::net_speed, 0, 10'000'000)},
      {"ONEBIT_CONNECT_RETRIES", "NCCL_SOCKET_RETRY_CNT", "a whole number from 0 to 10000",
       "How often the NCCL plugin tries again to connect to a peer that refuses or cannot be reached.",
       number_value(&Settings::connect_retries, 0, 10'000)},
      {"ONEBIT_CONNECT_RETRY_MSEC", "NCCL_SOCKET_RETRY_SLEEP_MSEC", "milliseconds, from 0 to 60000",
       "The pause before the first of these tries; before the n-th it is n times as long.",
       number_value(&Settings::connect_retry_ms, 0, 60'000)},
      {"ONEBIT_INIT_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long set-up waits for all ranks before it fails and names the missing ones.",
       duration_value(&Settings::init_timeout)},
      {"ONEBIT_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long a call waits without any progress before it fails and names the ranks it waits for.",
       duration_value(&Settings::timeout)},
      {"ONEBIT_LINK_TIMEOUT", "", "seconds, or with a unit: ms, s, min",
       "How long the network to a peer may be dead before its connection counts as lost.",
       duration_value(&Settings::link_timeout)},
      {"ONEBIT_SECRET", "", "text",
       "The job's secret: only ranks that know it can join. Wins over ONEBIT_SECRET_FILE.", secret_value()},
      {"ONEBIT_SECRET_FILE", "", "the path of a readable file", "A file that holds the secret.",
       secret_file_value()},
      {"ONEBIT_JOB_ID", "", "text",
       "Tells two jobs apart that share a master address. Unset: the launcher's (TORCHELASTIC_RUN_ID, "
       "SLURM_JOB_ID and step, OMPI_MCA_ess_base_jobid, PMIX_NAMESPACE or PMI_JOBID).",
       text_value(&Settings::job_id)},
      {"ONEBIT_MASTER_PORT", "", "a port; 0 = MASTER_PORT, or made from it or from the job id",
       "The port of rank 0 where all ranks meet. Automatic: MASTER_PORT; under torchrun, whose own store has "
       "that port, and under Slurm and Open MPI without MASTER_PORT, one above 61000 made from MASTER_PORT "
       "or the job id.",
       number_value(&Settings::master_port, 0, 65535)},
      {"ONEBIT_WARMUP_CALLS", "", "a whole number",
       "NCCL jobs: the first calls of each tag, or of each size without one, go the exact way.",
       number_value(&Settings::warmup_calls, 0, std::numeric_limits<std::uint32_t>::max())},
      {"ONEBIT_RESIDUAL_TYPE", "", "`float` or `bfloat16`",
       "NCCL jobs: how residuals are kept in device memory; `bfloat16` takes half of it and rounds them.",
       choice_value(&Settings::residuals_are_bfloat16, kResidualTypes)},
      {"ONEBIT_TWO_LEVEL", "", "`auto`, `off` or `on`",
       "NCCL jobs whose ranks share nodes: allreduces and reduce-scatters are exact inside of a node and in "
       "1 bit between nodes. `auto` does so where all nodes have as many ranks, and several; `on` also warns "
       "where that is not so.",
       choice_value(&Settings::two_level, kTwoLevels)},
      {"ONEBIT_NCCL_LIBRARY", "", "the path of a library",
       "The NCCL whose functions libonebit-nccl.so and optimizers in a GPU's memory call. Unset: the one "
       "that the job has loaded.",
       text_value(&Settings::nccl_library)},
      {"ONEBIT_CUDA_LIBRARY", "", "the path of a library",
       "libonebit-cuda.so. Unset: the one beside libonebit-nccl.so or libonebit.so.",
       text_value(&Settings::cuda_library)},
      {"ONEBIT_DEBUG", "", "`NONE`, `WARN`, `INFO` or `TRACE`",
       "What is logged to stderr. INFO also says why a call went the exact way.",
       choice_value(&Settings::debug, kLevels)},
  };
}

}  // namespace

std::span<const SettingRow> setting_rows() {
  static const std::vector<SettingRow> rows = make_rows();
  return rows;
}

}  // namespace onebit
