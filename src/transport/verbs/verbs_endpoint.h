// One end of a connection over verbs: its life (introduce, finish, fail), its sends, its receives.
//
// A connection of TCP, proven by its handshake, carries what must not get lost when something goes wrong: the
// introduction of the queue pairs, the goodbye, the reason of an abort, and the death of the peer's process.
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

#include "transport/request_list.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_core.h"
#include "transport/verbs/verbs_queues.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

class VerbsEndpoint final : public Endpoint {
 public:
  /// The connecting end, through the port with this index, to a listener of the control context.
  static Result<std::unique_ptr<VerbsEndpoint>> connect(std::shared_ptr<VerbsCore> core, std::size_t port,
                                                        const Handle& handle,
                                                        std::span<const std::byte> hello);
  /// The accepting end, over its control connection.
  static Result<std::unique_ptr<VerbsEndpoint>> accepted(std::shared_ptr<VerbsCore> core, std::size_t port,
                                                         std::unique_ptr<Endpoint> control);
  ~VerbsEndpoint() override;

  State state() const override { return state_; }
  const Status& status() const override { return status_; }
  std::string peer() const override { return control_->peer(); }
  std::span<const std::byte> hello() const override { return hello_; }
  Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag, std::uint32_t check,
              Memory* memory) override;
  Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check,
                 Memory* memory) override;
  std::optional<WaitingMessage> waiting_message() const override;
  void finish() override;
  bool closed() const override { return closed_ || state_ == State::kFailed; }
  void abort(const Status& reason) noexcept override;
  Counters counters() const override { return counters_; }

  // For VerbsCore and VerbsContext.
  /// Takes completions, some at a time; true when there were any.
  bool poll();
  /// Has the completion channel wake the next wait.
  Status arm();
  /// Takes what the control connection has brought.
  void on_control();
  void on_tick(Clock::time_point now);
  /// Moves requests that have ended to `completed`.
  void report(std::vector<Request*>& completed);
  bool owns(const ibv_qp* pair, const ibv_cq* completions) const noexcept;
  void fail(Status status);

 private:
  /// A large message to the peer, by the number that it was announced with.
  struct Outgoing {
    Request* request = nullptr;  ///< null: the number is free
    RegisteredMemory::Hold memory;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t segments_under_way = 0;
  };
  /// A large message from the peer that a receive has matched.
  struct Incoming {
    Request* request = nullptr;
    RegisteredMemory::Hold memory;
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

  VerbsEndpoint(std::shared_ptr<VerbsCore> core, OpenPort& port);

  // Life
  Status make_queues();
  Status join(const Introduction& introduction);
  Status say(Request& request, std::vector<std::byte> what);
  Status hear();
  Status take_control(const ControlMessage& message);
  void fail_requests() noexcept;
  void end(Request& request, Request::State state) noexcept;
  void on_broken(const ibv_wc& completion);
  void check_finished();
  void check_closed(Clock::time_point now);
  void try_goodbye();
  bool usable() const noexcept { return state_ == State::kReady || state_ == State::kFinished; }
  Status check_usable(const Request& request) const;
  /// With the peer's name, which takes longer than a small message: an error only.
  Status with_peer(Status status) const { return status.ok() ? status : status.with_context(peer()); }
  Status on_completion(const ibv_wc& completion);

  // Sends
  void pump();
  Status post_waiting();
  Status send_message(int slot, MessageHeader& header, const std::byte* data);
  Status send_next(bool& sent);
  Status announce(Request& request, bool& sent);
  Status write_segments();
  Status take_advertisement(const MessageHeader& header);
  Status on_segment_sent(std::size_t pair);
  bool take_credits(const MessageHeader& header);
  std::size_t most_eager() const noexcept { return peer_sizes_.slot_bytes - kEagerHeaderBytes; }

  // Receives
  Status on_arrival(const ibv_wc& completion);
  Status on_segment_arrival(const ibv_wc& completion);
  Status match();
  Status take_eager(const Arrival& arrival, Request& request);
  Status take_announced(const Arrival& arrival, Request& request);
  Request* posted_for(const MessageHeader& header, Request*& previous) const noexcept;
  bool credits_are_due() const noexcept;
  Status bad_data(std::string_view what) const;

  std::shared_ptr<VerbsCore> core_;
  OpenPort& port_;
  std::unique_ptr<Endpoint> control_;
  std::unique_ptr<VerbsQueues> queues_;  ///< null after a failure
  State state_ = State::kConnecting;
  Status status_;
  Counters counters_;
  RequestList ended_;  ///< with `notify`, not yet reported
  Status broken_;  ///< what a completion said; the control connection is asked first whether it knows more

  // The control connection
  Request heard_;
  std::array<std::byte, kMaxControlBytes> hearing_{};
  std::array<Request, 3> said_;
  std::array<std::vector<std::byte>, 3> saying_;  ///< an introduction, ready, a goodbye
  std::vector<std::byte> hello_;
  Clock::time_point opening_deadline_ = Clock::time_point::max();
  bool hearing_begun_ = false;
  bool open_ = false;  ///< the peer can receive
  bool goodbye_sent_ = false;
  bool goodbye_received_ = false;
  std::uint32_t goodbye_messages_ = 0;
  std::uint64_t arrived_ = 0;         ///< bytes, when that was looked at last
  Clock::time_point last_arrival_{};  ///< not before it; known while this end closes

  // Sends
  RequestList sends_;  ///< in order; nothing of them is on its way
  QueueSizes peer_sizes_;
  std::uint32_t next_send_ = 0;
  std::uint32_t slots_used_ = 0;  ///< of the peer's, since the beginning
  std::uint32_t peer_slots_freed_ = 0;
  std::uint32_t segments_used_ = 0;
  std::uint32_t peer_segments_freed_ = 0;
  std::vector<Outgoing> outgoing_;     ///< by number
  std::deque<std::uint32_t> writing_;  ///< numbers of those that were advertised and have bytes left to write
  std::vector<std::deque<Segment>> under_way_;  ///< by data pair, in order
  std::size_t turn_ = 0;                        ///< the data pair that has the next segment
  bool finishing_ = false;
  bool closed_ = false;

  // Receives
  RequestList posted_;
  std::deque<Arrival> arrivals_;
  std::vector<Incoming> incoming_;  ///< by the peer's number
  std::deque<std::uint32_t> to_advertise_;
  std::uint32_t next_arrival_ = 0;  ///< the sequence of the next message
  std::uint32_t slots_freed_ = 0;
  std::uint32_t slots_told_ = 0;  ///< of `slots_freed_`, what the peer knows
  std::uint32_t segments_freed_ = 0;
  std::uint32_t segments_told_ = 0;
};

}  // namespace onebit::transport
