#include "transport/verbs/verbs_pair.h"

#include <algorithm>
#include <cstring>

namespace onebit::transport {
namespace {

/// Never used up by a peer that keeps to its credits; 7 = without limit.
constexpr std::uint8_t kNotReadyRetries = 7;
constexpr std::uint8_t kNotReadyTimer = 12;  // 0.64 ms
constexpr std::uint8_t kHops = 64;

}  // namespace

PortPlace place_of(const OpenPort& open) {
  const VerbsPort& port = open.port();
  return {open.address().gid, port.lid, static_cast<std::uint8_t>(port.mtu), port.ethernet};
}

Status prepare_pair(const OpenPort& port, ibv_qp* pair, const Settings& settings) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = static_cast<std::uint16_t>(settings.ib_pkey);
  attributes.port_num = port.port().number;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error = port.library().modify_qp(
      pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return Status();
  return Status::system(
      error, formatted("{}: prepare a queue pair (ONEBIT_IB_PKEY={})", port.port().name(), settings.ib_pkey));
}

Status connect_pair(const OpenPort& open, ibv_qp* pair, const Settings& settings, std::uint32_t first_packet,
                    const PairPlace& peer) {
  const VerbsPort& port = open.port();
  const PortPlace& place = peer.port;
  if (place.ethernet != port.ethernet) {
    return Status::error(
        Code::kInvalidUsage,
        "{} here is {} and the peer's port is not: choose ports of one network (ONEBIT_IB_HCA)", port.name(),
        port.ethernet ? "Ethernet" : "InfiniBand");
  }
  const bool routed = port.ethernet || std::memcmp(place.gid.raw, open.address().gid.raw, 8) != 0;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(port.mtu, static_cast<ibv_mtu>(place.mtu));
  to.dest_qp_num = peer.number;
  to.rq_psn = peer.first_packet;
  to.max_dest_rd_atomic = 1;
  to.min_rnr_timer = kNotReadyTimer;
  to.ah_attr.port_num = port.number;
  to.ah_attr.sl = static_cast<std::uint8_t>(settings.ib_sl);
  to.ah_attr.dlid = place.lid;
  if (routed) {
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.dgid = place.gid;
    to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(open.address().index);
    to.ah_attr.grh.hop_limit = kHops;
    to.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(settings.ib_tc);
  }
  const VerbsLibrary& library = open.library();
  int error = library.modify_qp(pair, &to,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    ibv_qp_attr send{};
    send.qp_state = IBV_QPS_RTS;
    send.sq_psn = first_packet;
    send.timeout = static_cast<std::uint8_t>(settings.ib_timeout);
    send.retry_cnt = static_cast<std::uint8_t>(settings.ib_retries);
    send.rnr_retry = kNotReadyRetries;
    send.max_rd_atomic = 1;
    error = library.modify_qp(pair, &send,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) return Status();
  return Status::system(
      error, formatted("connect a queue pair from {} ({}, GID {}) to {} (can the two ports reach "
                       "each other? ONEBIT_IB_HCA and ONEBIT_IB_GID_INDEX choose others)",
                       port.name(), gid_text(open.address().gid), open.address().index, gid_text(place.gid)));
}

}  // namespace onebit::transport
