// The queues of one connection: a queue pair for messages, some for data, their completion queues and slots.
//
// Messages go through slots of registered memory at both ends; data is written straight to where it belongs,
// on pairs of its own, whose receive queues hold nothing but places for completions. With several ports the
// data pairs are dealt out to them in turn, and each port has a completion queue. Invariant: at most as much
// is posted as the queues have room for (take_slot and segment_room say it), and the completion queues have
// room for all of that, so none can overrun. Threads: those of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/settings.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_pages.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

class VerbsQueues {
 public:
  /// What a completion is of; with an index into the slots or the pairs.
  enum class Of : std::uint32_t { kArrival = 1, kMessageSent = 2, kSegmentArrival = 3, kSegmentSent = 4 };

  /// On 1 to kMaxPorts ports, of which the first has the messages.
  static Result<std::unique_ptr<VerbsQueues>> make(std::vector<OpenPort*> ports, const Settings& settings,
                                                   const QueueSizes& sizes);
  ~VerbsQueues();

  Introduction introduction() const;
  /// Connects the pairs with the peer's, as many as both have; from then on they receive and send.
  Status connect(const Introduction& peer);
  std::size_t data_pairs() const noexcept { return pairs_.size() - 1; }
  bool owns(const ibv_qp* pair) const noexcept;
  bool owns(const ibv_cq* completions) const noexcept;
  /// The port that a completion came through.
  const OpenPort& port_of(const ibv_wc& completion) const noexcept;

  // Messages
  /// A slot to fill and send; -1 when all are under way.
  int take_slot() noexcept;
  std::byte* slot(int index) noexcept {
    return slots_.data() + static_cast<std::size_t>(index) * sizes_.slot_bytes;
  }
  Status send_slot(int index, std::size_t bytes) noexcept;
  void free_slot(int index) noexcept { free_.push_back(index); }
  bool all_sent() const noexcept { return free_.size() == send_slots_; }
  /// Has a slot receive again.
  Status renew_slot(int index) noexcept;

  // Data
  /// How many more segments the send queue of a data pair takes.
  std::uint32_t segment_room(std::size_t pair) const noexcept {
    return sizes_.segments - segments_out_[pair];
  }
  Status write_segment(std::size_t pair, const std::byte* from, std::uint32_t bytes, std::uint32_t local_key,
                       std::uint64_t to, std::uint32_t remote_key, std::uint32_t rendezvous) noexcept;
  void segment_sent(std::size_t pair) noexcept { --segments_out_[pair]; }
  Status renew_segment(std::size_t pair) noexcept;

  /// Completions, up to the size of `into`.
  Result<std::size_t> poll(std::span<ibv_wc> into) noexcept;
  static Of of(std::uint64_t id) noexcept { return static_cast<Of>(id >> 32); }
  static std::uint32_t index(std::uint64_t id) noexcept { return static_cast<std::uint32_t>(id); }
  /// Asks for an event at the next completion.
  Status arm() noexcept;

 private:
  VerbsQueues(std::vector<OpenPort*> ports, const Settings& settings, const QueueSizes& sizes);
  Status make_completions(std::size_t data_pairs);
  Status make_pairs();
  Status make_slots();
  Status fill_receives();
  std::uint32_t receive_slots() const noexcept;
  OpenPort& port_of_pair(std::size_t pair) const noexcept {
    return *ports_[pair == 0 ? 0 : Introduction::port_of(pair - 1, ports_.size())];
  }
  Status post_receive(std::size_t pair, std::uint64_t id, std::byte* at, std::uint32_t bytes) noexcept;
  Status post_send(std::size_t pair, ibv_send_wr& work) noexcept;

  const std::vector<OpenPort*> ports_;
  const Settings settings_;
  const QueueSizes sizes_;
  std::uint32_t send_slots_;
  std::uint32_t first_packet_ = 0;
  std::uint32_t most_inline_ = 0;
  VerbsPages slots_;  ///< those that receive, then those that send
  RegisteredMemory::Hold hold_;
  std::vector<VerbsCompletions> completions_;  ///< by port
  std::vector<VerbsPair> pairs_;               ///< the first for messages
  std::vector<int> free_;                      ///< slots to send
  std::vector<std::uint32_t> segments_out_;
};

}  // namespace onebit::transport
