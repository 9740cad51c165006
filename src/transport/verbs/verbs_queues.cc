#include "transport/verbs/verbs_queues.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "bootstrap/handshake.h"

namespace onebit::transport {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kSendSlots = 16;
/// Of credits without a message: each tells of half a window that is new, and there are two windows.
constexpr std::uint32_t kCreditSlots = 4;
constexpr std::uint32_t kInline = 128;
/// Never used up by a peer that keeps to its credits; 7 = without limit.
constexpr std::uint8_t kNotReadyRetries = 7;
constexpr std::uint8_t kNotReadyTimer = 12;  // 0.64 ms
constexpr std::uint8_t kHops = 64;

std::uint64_t id_of(VerbsQueues::Of of, std::size_t index) noexcept {
  return static_cast<std::uint64_t>(of) << 32 | index;
}

}  // namespace

VerbsQueues::VerbsQueues(std::vector<OpenPort*> ports, const Settings& settings, const QueueSizes& sizes)
    : ports_(std::move(ports)),
      settings_(settings),
      sizes_(sizes),
      send_slots_(std::min(kSendSlots, sizes.slots)) {}

VerbsQueues::~VerbsQueues() = default;

/// Messages within the peer's credits, its advertisements, and its credits.
std::uint32_t VerbsQueues::receive_slots() const noexcept {
  return sizes_.slots + sizes_.rendezvous + kCreditSlots;
}

Result<std::unique_ptr<VerbsQueues>> VerbsQueues::make(std::vector<OpenPort*> ports, const Settings& settings,
                                                       const QueueSizes& sizes) {
  std::unique_ptr<VerbsQueues> made(new VerbsQueues(std::move(ports), settings, sizes));
  ONEBIT_RETURN_IF_ERROR(made->make_slots());
  ONEBIT_RETURN_IF_ERROR(made->make_pairs());
  ONEBIT_RETURN_IF_ERROR(made->fill_receives());
  return made;
}

Status VerbsQueues::make_slots() {
  const std::size_t count = receive_slots() + send_slots_;
  const std::size_t bytes = (count * sizes_.slot_bytes + kPage - 1) / kPage * kPage;
  slots_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
  if (!slots_) return Status::system(ENOMEM, "message slots of a connection");
  std::memset(slots_.get(), 0, bytes);
  ONEBIT_ASSIGN_OR_RETURN(hold_, ports_.front()->memory().hold(slots_.get(), bytes, true));
  for (std::uint32_t i = 0; i < send_slots_; ++i) free_.push_back(static_cast<int>(receive_slots() + i));
  return Status();
}

Status VerbsQueues::make_completions(std::size_t data_pairs) {
  std::vector<std::uint32_t> room(ports_.size());
  room.front() = receive_slots() + send_slots_;
  for (std::size_t pair = 0; pair < data_pairs; ++pair) {
    room[Introduction::port_of(pair, ports_.size())] += 2 * sizes_.segments;
  }
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const OpenPort& port = *ports_[i];
    const VerbsLibrary& library = port.library();
    completions_.emplace_back(
        library, library.create_cq(port.context(), static_cast<int>(room[i]), nullptr, port.channel(), 0));
    if (completions_.back()) continue;
    return Status::system(errno,
                          fmt::format("{}: a completion queue of {} entries", port.port().name(), room[i]));
  }
  return Status();
}

Status VerbsQueues::make_pairs() {
  const auto ports = static_cast<std::uint32_t>(ports_.size());
  const std::uint32_t data_pairs = ports * std::min(settings_.ib_pairs, kMaxPairs / ports);
  ONEBIT_RETURN_IF_ERROR(make_completions(data_pairs));
  for (std::uint32_t i = 0; i <= data_pairs; ++i) {
    const OpenPort& port = port_of_pair(i);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq =
        completions_[i == 0 ? 0 : Introduction::port_of(i - 1, ports)].get();
    attributes.sq_sig_all = 1;
    attributes.cap.max_send_wr = i == 0 ? send_slots_ : sizes_.segments;
    attributes.cap.max_recv_wr = i == 0 ? receive_slots() : sizes_.segments;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = i == 0 ? kInline : 0;
    pairs_.emplace_back(port.library(), port.library().create_qp(port.domain(), &attributes));
    if (!pairs_.back()) {
      return Status::system(errno,
                            fmt::format("{}: a queue pair for {} sends and {} receives", port.port().name(),
                                        attributes.cap.max_send_wr, attributes.cap.max_recv_wr));
    }
    if (i == 0) most_inline_ = attributes.cap.max_inline_data;
    ONEBIT_RETURN_IF_ERROR(prepare(i));
  }
  segments_out_.assign(data_pairs, 0);
  const auto random = bootstrap::random_key();
  std::memcpy(&first_packet_, random.data(), 3);
  return Status();
}

Status VerbsQueues::prepare(std::size_t pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = static_cast<std::uint16_t>(settings_.ib_pkey);
  const OpenPort& port = port_of_pair(pair);
  attributes.port_num = port.port().number;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const int error = port.library().modify_qp(
      pairs_[pair].get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return Status();
  return Status::system(error, fmt::format("{}: prepare a queue pair (ONEBIT_IB_PKEY={})", port.port().name(),
                                           settings_.ib_pkey));
}

Status VerbsQueues::fill_receives() {
  for (std::uint32_t i = 0; i < receive_slots(); ++i) ONEBIT_RETURN_IF_ERROR(renew_slot(static_cast<int>(i)));
  for (std::size_t pair = 0; pair < data_pairs(); ++pair) {
    for (std::uint32_t i = 0; i < sizes_.segments; ++i) ONEBIT_RETURN_IF_ERROR(renew_segment(pair));
  }
  return Status();
}

Introduction VerbsQueues::introduction() const {
  Introduction made;
  made.first_packet = first_packet_;
  made.sizes = sizes_;
  for (const OpenPort* const open : ports_) {
    const VerbsPort& port = open->port();
    made.ports.push_back({open->address().gid, port.lid, static_cast<std::uint8_t>(port.mtu), port.ethernet});
  }
  for (const VerbsPair& pair : pairs_) made.pairs.push_back(pair->qp_num);
  return made;
}

Status VerbsQueues::connect(const Introduction& peer) {
  const std::size_t count = std::min(pairs_.size(), peer.pairs.size());
  pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(count), pairs_.end());
  for (std::size_t i = 0; i < count; ++i) ONEBIT_RETURN_IF_ERROR(connect(i, peer));
  return Status();
}

Status VerbsQueues::connect(std::size_t pair, const Introduction& peer) {
  const OpenPort& own = port_of_pair(pair);
  const VerbsPort& port = own.port();
  const PortPlace& place = peer.ports[pair == 0 ? 0 : Introduction::port_of(pair - 1, peer.ports.size())];
  if (place.ethernet != port.ethernet) {
    return Status::error(
        Code::kInvalidUsage,
        "{} here is {} and the peer's port is not: choose ports of one network (ONEBIT_IB_HCA)", port.name(),
        port.ethernet ? "Ethernet" : "InfiniBand");
  }
  const bool routed = port.ethernet || std::memcmp(place.gid.raw, own.address().gid.raw, 8) != 0;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(port.mtu, static_cast<ibv_mtu>(place.mtu));
  to.dest_qp_num = peer.pairs[pair];
  to.rq_psn = peer.first_packet;
  to.max_dest_rd_atomic = 1;
  to.min_rnr_timer = kNotReadyTimer;
  to.ah_attr.port_num = port.number;
  to.ah_attr.sl = static_cast<std::uint8_t>(settings_.ib_sl);
  to.ah_attr.dlid = place.lid;
  if (routed) {
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.dgid = place.gid;
    to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(own.address().index);
    to.ah_attr.grh.hop_limit = kHops;
    to.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(settings_.ib_tc);
  }
  const VerbsLibrary& library = own.library();
  int error = library.modify_qp(pairs_[pair].get(), &to,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    ibv_qp_attr send{};
    send.qp_state = IBV_QPS_RTS;
    send.sq_psn = first_packet_;
    send.timeout = static_cast<std::uint8_t>(settings_.ib_timeout);
    send.retry_cnt = static_cast<std::uint8_t>(settings_.ib_retries);
    send.rnr_retry = kNotReadyRetries;
    send.max_rd_atomic = 1;
    error = library.modify_qp(pairs_[pair].get(), &send,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) return Status();
  return Status::system(
      error, fmt::format("connect a queue pair from {} ({}, GID {}) to {} (can the two ports reach "
                         "each other? ONEBIT_IB_HCA and ONEBIT_IB_GID_INDEX choose others)",
                         port.name(), gid_text(own.address().gid), own.address().index, gid_text(place.gid)));
}

bool VerbsQueues::owns(const ibv_qp* pair) const noexcept {
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [pair](const VerbsPair& own) { return own.get() == pair; });
}

bool VerbsQueues::owns(const ibv_cq* completions) const noexcept {
  return std::any_of(completions_.begin(), completions_.end(),
                     [completions](const VerbsCompletions& own) { return own.get() == completions; });
}

const OpenPort& VerbsQueues::port_of(const ibv_wc& completion) const noexcept {
  const bool of_data =
      of(completion.wr_id) == Of::kSegmentSent || of(completion.wr_id) == Of::kSegmentArrival;
  return port_of_pair(of_data ? index(completion.wr_id) + 1 : 0);
}

// --- Messages ---

int VerbsQueues::take_slot() noexcept {
  if (free_.empty()) return -1;
  const int index = free_.back();
  free_.pop_back();
  return index;
}

Status VerbsQueues::send_slot(int index, std::size_t bytes) noexcept {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(slot(index)), static_cast<std::uint32_t>(bytes),
                hold_.local_key()};
  ibv_send_wr work{};
  work.wr_id = id_of(Of::kMessageSent, static_cast<std::size_t>(index));
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_SEND;
  if (bytes <= most_inline_) work.send_flags = IBV_SEND_INLINE;
  return post_send(0, work);
}

Status VerbsQueues::renew_slot(int index) noexcept {
  return post_receive(0, id_of(Of::kArrival, static_cast<std::size_t>(index)), slot(index),
                      sizes_.slot_bytes);
}

// --- Data ---

Status VerbsQueues::write_segment(std::size_t pair, const std::byte* from, std::uint32_t bytes,
                                  std::uint32_t local_key, std::uint64_t to, std::uint32_t remote_key,
                                  std::uint32_t rendezvous) noexcept {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(from), bytes, local_key};
  ibv_send_wr work{};
  work.wr_id = id_of(Of::kSegmentSent, pair);
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  work.imm_data = htonl(rendezvous);
  work.wr.rdma.remote_addr = to;
  work.wr.rdma.rkey = remote_key;
  ++segments_out_[pair];
  return post_send(pair + 1, work);
}

Status VerbsQueues::renew_segment(std::size_t pair) noexcept {
  return post_receive(pair + 1, id_of(Of::kSegmentArrival, pair), nullptr, 0);
}

// --- Both ---

Status VerbsQueues::post_receive(std::size_t pair, std::uint64_t id, std::byte* at,
                                 std::uint32_t bytes) noexcept {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(at), bytes, hold_.local_key()};
  ibv_recv_wr work{};
  work.wr_id = id;
  work.sg_list = &piece;
  work.num_sge = bytes > 0 ? 1 : 0;
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(pairs_[pair].get(), &work, &refused);
  return error == 0 ? Status() : Status::system(error, "ibv_post_recv");
}

Status VerbsQueues::post_send(std::size_t pair, ibv_send_wr& work) noexcept {
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pairs_[pair].get(), &work, &refused);
  return error == 0 ? Status() : Status::system(error, "ibv_post_send");
}

Result<std::size_t> VerbsQueues::poll(std::span<ibv_wc> into) noexcept {
  std::size_t taken = 0;
  for (const VerbsCompletions& queue : completions_) {
    const int count = ibv_poll_cq(queue.get(), static_cast<int>(into.size() - taken), into.data() + taken);
    if (count < 0) return Status(Code::kSystemError, "ibv_poll_cq failed");
    taken += static_cast<std::size_t>(count);
  }
  return taken;
}

Status VerbsQueues::arm() noexcept {
  for (const VerbsCompletions& queue : completions_) {
    if (const int error = ibv_req_notify_cq(queue.get(), 0); error != 0) {
      return Status::system(error, "ibv_req_notify_cq");
    }
  }
  return Status();
}

}  // namespace onebit::transport
