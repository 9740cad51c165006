#include "transport/verbs/verbs_queues.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/handshake.h"
#include "transport/verbs/verbs_pair.h"

namespace onebit::transport {
namespace {

constexpr std::uint32_t kSendSlots = 16;
/// Of credits without a message: each tells of half a window that is new, and there are two windows.
constexpr std::uint32_t kCreditSlots = 4;
constexpr std::uint32_t kInline = 128;

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
  const std::size_t bytes = (receive_slots() + send_slots_) * std::size_t{sizes_.slot_bytes};
  ONEBIT_ASSIGN_OR_RETURN(slots_, VerbsPages::make(bytes, "message slots of a connection"));
  ONEBIT_ASSIGN_OR_RETURN(hold_, ports_.front()->memory().hold(slots_.data(), bytes, true));
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
    ONEBIT_RETURN_IF_ERROR(prepare_pair(port, pairs_.back().get(), settings_));
  }
  segments_out_.assign(data_pairs, 0);
  const auto random = bootstrap::random_key();
  std::memcpy(&first_packet_, random.data(), 3);
  return Status();
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
    made.ports.push_back(place_of(*open));
  }
  for (const VerbsPair& pair : pairs_) made.pairs.push_back(pair->qp_num);
  return made;
}

Status VerbsQueues::connect(const Introduction& peer) {
  const std::size_t count = std::min(pairs_.size(), peer.pairs.size());
  pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(count), pairs_.end());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t port = i == 0 ? 0 : Introduction::port_of(i - 1, peer.ports.size());
    ONEBIT_RETURN_IF_ERROR(connect_pair(port_of_pair(i), pairs_[i].get(), settings_, first_packet_,
                                        {peer.ports[port], peer.pairs[i], peer.first_packet}));
  }
  return Status();
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
