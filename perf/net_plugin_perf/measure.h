// What is measured between two processes: latency and bandwidth of a net plugin, and latency of the plain
// connection.
//
// The connecting side (`first`) sends; both run the same functions at the same time. Every message of a
// bandwidth run carries its number at both ends, which the receiver checks.
#pragma once

#include <cstdint>

#include "peers.h"

namespace onebit::perf {

struct Bandwidth {
  double gbps = 0;          ///< as the receiver saw it
  double cpu_s_per_gb = 0;  ///< of both processes
};

/// Half a round trip in microseconds, the median of `rounds`.
Result<double> latency(Comms& comms, std::size_t bytes, std::uint32_t rounds, bool first);
/// The same of plain send and recv, which spin as NCCL's progress thread does.
Result<double> plain_latency(Plain& plain, std::size_t bytes, std::uint32_t rounds, bool first);
/// Messages of `bytes`, `inflight` of them under way, for about `seconds`.
Result<Bandwidth> bandwidth(Comms& comms, Plain& plain, std::size_t bytes, std::uint32_t inflight,
                            double seconds, bool first);

}  // namespace onebit::perf
