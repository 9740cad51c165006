// One end of a connection over several flows: its life (connect, finish, fail), its sends, its receives.
//
// Sends wait in a queue; segments of its head go to whichever flow can write, so a slow flow takes a smaller
// share. Receives wait in the order of posting until the next message, in the order of the sender, has their
// tag; then they are active until all bytes are there. Invariants: a pending request is in exactly one of
// {send queue, flows' `out`} or {posted, active}; after fail() no request is pending and no socket is open.
// tcp_endpoint.cc has the life, tcp_send.cc and tcp_receive.cc the two directions. Threads: those of the
// context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "base/unique_socket.h"
#include "transport/common_endpoint.h"
#include "transport/tcp/tcp_core.h"
#include "transport/tcp/tcp_flow.h"
#include "transport/tcp/tcp_handle.h"
#include "transport/transport.h"

namespace onebit::transport {

class TcpEndpoint final : public CommonEndpoint {
 public:
  /// The connecting end, with `flows` of them or as many as either end has addresses, if that is more.
  static Result<std::unique_ptr<TcpEndpoint>> connect(const std::shared_ptr<TcpCore>& core,
                                                      const Device& device, const HandleContents& to,
                                                      std::uint32_t flows, std::span<const std::byte> hello);
  /// The accepting end, of flows whose handshake is done, in the order of their index.
  static Result<std::unique_ptr<TcpEndpoint>> accepted(const std::shared_ptr<TcpCore>& core,
                                                       const SocketAddress& peer,
                                                       std::vector<UniqueSocket> flows,
                                                       std::vector<std::byte> hello);
  ~TcpEndpoint() override;

  std::string peer() const override { return peer_.to_string(); }
  Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag, std::uint32_t check,
              Memory* memory) override;
  Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check,
                 Memory* memory) override;
  std::optional<WaitingMessage> waiting_message() const override;
  void finish() override;

  // For Flow and TcpContext.
  void on_flow_ready(Flow& flow);
  /// Looks for data without an event; false, and does nothing, where other things are waited for, too.
  bool look_at(Flow& flow);
  /// The kernel needs these bytes of a message no more.
  void on_sent(Request& request, std::size_t bytes) noexcept;
  /// Looks at deadlines, dead links and the end of closing.
  void on_tick(Clock::time_point now) override;

 private:
  TcpEndpoint(const std::shared_ptr<TcpCore>& core, const SocketAddress& peer,
              std::span<const std::byte> hello);

  // Life
  Status start(Flow& flow);
  void advance_opening(Flow& flow);
  bool try_again(Flow& flow, const Status& why);
  void on_open(Flow& flow);
  void stop(const Status& why) noexcept override;
  void tell_peer(Flow& flow, const Status& reason) noexcept;
  void close_flows(const Status& reason) noexcept;
  void fail_requests() noexcept;
  void on_broken(Flow& flow);
  void on_end(Flow& flow);
  void check_closed();
  void check_links();

  // Sends. What send() itself writes, and what one turn in progress() writes, about:
  static constexpr std::size_t kInlineBudget = 1 << 20;
  static constexpr std::size_t kTurnBudget = 4 << 20;
  void pump(std::size_t budget);
  void fill(Flow& flow);
  bool write(Flow& flow);
  void send_goodbyes();
  void take_returned(Flow& flow);

  // Receives
  void read(Flow& flow);
  enum class Consumed : std::uint8_t { kAll, kParked, kFailed };
  Consumed consume(Flow& flow);
  Consumed take_data(Flow& flow, const SegmentHeader& header);
  Request* match(const SegmentHeader& header);
  Request* find_active(std::uint32_t sequence) const noexcept;
  void park(Flow& flow, const SegmentHeader& header);
  void unpark() noexcept;
  void finish_segment(Flow& flow) noexcept;
  void take_goodbye(Flow& flow, const SegmentHeader& header);
  void take_abort(const SegmentHeader& header, const std::byte* reason);
  void read_parked_rest(Flow& flow);
  void on_finished();
  void fail_data(std::string_view what);

  TcpCore* const core_;
  const SocketAddress peer_;
  std::vector<std::unique_ptr<Flow>> flows_;

  // Opening
  bootstrap::Key key_{};
  std::uint64_t id_ = 0;
  std::size_t open_flows_ = 0;

  // Sends
  RequestList sends_;                            ///< with bytes that no flow has yet
  std::size_t turn_ = 0;                         ///< the flow that is offered the next segments
  std::vector<LentPayloads::Payload> returned_;  ///< by the kernel, in take_returned
  bool peer_left_ = false;                       ///< it has finished and closed its end

  // Receives
  RequestList active_;
  std::uint32_t next_match_ = 0;  ///< the sequence of the next message that a receive must match
  std::uint32_t goodbye_sequence_ = 0;
  std::size_t goodbyes_ = 0;
};

}  // namespace onebit::transport
