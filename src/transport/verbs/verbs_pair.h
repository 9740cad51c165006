// A reliable-connection queue pair on its way from being made to sending: the two steps, whoever it is for.
//
// No state; threads: those of the context.
#pragma once

#include <cstdint>

#include "base/settings.h"
#include "base/status.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

/// Where a queue pair is found.
struct PairPlace {
  PortPlace port;
  std::uint32_t number = 0;
  std::uint32_t first_packet = 0;
};

PortPlace place_of(const OpenPort& port);
/// After it, receives can be posted.
Status prepare_pair(const OpenPort& port, ibv_qp* pair, const Settings& settings);
/// After it, it receives and sends. An error names both ends.
Status connect_pair(const OpenPort& port, ibv_qp* pair, const Settings& settings, std::uint32_t first_packet,
                    const PairPlace& peer);

}  // namespace onebit::transport
