// One end of a connection over verbs: its introduction, its sends, its receives.
//
// What ends it, and the control connection, are in controlled_endpoint.h.
// Messages go over the queue pairs: a small one with its bytes in one of the receiver's slots; a large one is
// announced, the receiver advertises the memory of the receive that matches it, and the sender writes there.
// Invariants: a pending request is in exactly one of {sends_, outgoing_} or {posted_, incoming_}; after
// fail() no request is pending, and the device neither reads nor writes their memory any more.
// verbs_endpoint.cc has the life, verbs_send.cc and verbs_receive.cc the two directions. Threads: those of
// the context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/controlled_endpoint.h"
#include "transport/request_list.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_core.h"
#include "transport/verbs/verbs_flush.h"
#include "transport/verbs/verbs_queues.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

class VerbsEndpoint final : public ControlledEndpoint {
 public:
  /// The connecting end, through the device with this index, to a listener of the control context.
  static Result<std::unique_ptr<VerbsEndpoint>> connect(std::shared_ptr<VerbsCore> core, std::size_t device,
                                                        const Handle& handle,
                                                        std::span<const std::byte> hello);
  /// The accepting end, over its control connection.
  static Result<std::unique_ptr<VerbsEndpoint>> accepted(std::shared_ptr<VerbsCore> core, std::size_t device,
                                                         std::unique_ptr<Endpoint> control);
  ~VerbsEndpoint() override;

  Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag, std::uint32_t check,
              Memory* memory) override;
  Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check,
                 Memory* memory) override;
  Status flush(Request& request, const void* data, std::size_t bytes, Memory* memory) override;
  std::optional<WaitingMessage> waiting_message() const override;

  // For VerbsCore.
  /// Takes completions, some at a time; true when there were any.
  bool poll();
  /// Has the completion channel wake the next wait.
  Status arm();
  bool owns(const ibv_qp* pair, const ibv_cq* completions) const noexcept;

 private:
  /// A large message to the peer, by the number that it was announced with.
  struct Outgoing {
    Request* request = nullptr;  ///< null: the number is free
    PortHolds memory;
    std::uint64_t address = 0;
    std::array<std::uint32_t, kMaxPorts> keys{};  ///< by the peer's ports
    std::uint32_t segments_under_way = 0;
  };
  /// A large message from the peer that a receive has matched.
  struct Incoming {
    Request* request = nullptr;
    PortHolds memory;
  };
  /// A message in its slot, not yet matched.
  struct Arrival {
    int slot = 0;
    MessageHeader header;
  };
  struct Segment {
    std::uint32_t rendezvous = 0;
    std::uint32_t bytes = 0;
  };

  VerbsEndpoint(std::shared_ptr<VerbsCore> core, std::vector<OpenPort*> ports);

  // Life
  Status make_queues();
  Status join(const Introduction& introduction);
  Status take_control(ControlKind kind, std::span<const std::byte> bytes) override;
  bool all_sent() const override;
  bool all_taken(std::uint32_t messages) const override;
  bool settled(Clock::time_point now) const override;
  void drop() noexcept override;
  void on_failed(const ibv_wc& completion);
  /// With the peer's name, which takes longer than a small message: an error only.
  Status with_peer(Status status) const { return status.ok() ? status : status.with_context(peer()); }
  Status on_completion(const ibv_wc& completion);
  Introduction introduction() const;
  const VerbsCore& verbs_core() const noexcept { return static_cast<const VerbsCore&>(*core_); }
  const QueueSizes& own_sizes() const noexcept { return verbs_core().sizes; }

  // Sends
  void pump() override;
  Status post_waiting();
  Status send_message(int slot, MessageHeader& header, const std::byte* data);
  Status send_next(bool& sent);
  Status announce(Request& request, bool& sent);
  Status write_segments();
  bool has_room(std::size_t pair) const noexcept;
  Status write_segment(std::size_t pair);
  Status take_advertisement(const MessageHeader& header);
  Status on_segment_sent(std::size_t pair);
  bool take_credits(const MessageHeader& header);
  /// Bytes of a message that goes through a slot: the processor copies it at both ends.
  std::size_t most_eager() const noexcept {
    return announced_only_ ? 0 : peer_sizes_.slot_bytes - kEagerHeaderBytes;
  }

  // Receives
  Status on_arrival(const ibv_wc& completion);
  Status on_segment_arrival(const ibv_wc& completion);
  Status match();
  Status take_eager(const Arrival& arrival, Request& request);
  Status take_announced(const Arrival& arrival, Request& request);
  bool credits_are_due() const noexcept;
  Status begin_flush();
  Status poll_flush(bool& any);

  const std::vector<OpenPort*> ports_;
  std::unique_ptr<VerbsQueues> queues_;       ///< null after a failure
  mutable std::uint64_t arrived_ = 0;         ///< bytes, when that was looked at last
  mutable Clock::time_point last_arrival_{};  ///< not before it; known while this end closes

  // Sends
  RequestList sends_;  ///< in order; nothing of them is on its way
  QueueSizes peer_sizes_;
  std::size_t peer_ports_ = 1;
  bool announced_only_ = false;   ///< one of the two ends may have its messages in the memory of a GPU
  std::uint32_t slots_used_ = 0;  ///< of the peer's, since the beginning
  std::uint32_t peer_slots_freed_ = 0;
  std::uint32_t segments_used_ = 0;
  std::uint32_t peer_segments_freed_ = 0;
  std::vector<Outgoing> outgoing_;     ///< by number
  std::deque<std::uint32_t> writing_;  ///< numbers of those that were advertised and have bytes left to write
  std::vector<std::deque<Segment>> under_way_;  ///< by data pair, in order
  std::size_t turn_ = 0;                        ///< the data pair that has the next segment

  // Receives
  std::deque<Arrival> arrivals_;
  std::vector<Incoming> incoming_;  ///< by the peer's number
  std::deque<std::uint32_t> to_advertise_;
  std::uint32_t next_arrival_ = 0;  ///< the sequence of the next message
  std::uint32_t slots_freed_ = 0;
  std::uint32_t slots_told_ = 0;  ///< of `slots_freed_`, what the peer knows
  std::uint32_t segments_freed_ = 0;
  std::uint32_t segments_told_ = 0;
  RequestList flushes_;                ///< the first one is under way
  std::unique_ptr<VerbsFlush> flush_;  ///< made by the first
};

}  // namespace onebit::transport
