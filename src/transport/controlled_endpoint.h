// What an end of a connection with a control connection has, whatever transport carries its messages: its
// life.
//
// The control connection carries what must not get lost when something goes wrong: the introduction of the
// two ends, the goodbye, the reason of an abort, and the death of the peer's process. Threads: those of the
// context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/common_endpoint.h"
#include "transport/controlled_core.h"
#include "transport/controlled_wire.h"
#include "transport/transport.h"

namespace onebit::transport {

class ControlledEndpoint : public CommonEndpoint {
 public:
  ~ControlledEndpoint() override;

  std::string peer() const final { return control_->peer(); }
  void finish() final;

  // For the core and the context.
  /// Takes what the control connection has brought.
  void on_control();
  void on_tick(Clock::time_point now) final;
  bool belongs_to(const ControlledCore& core) const noexcept { return core_ == &core; }
  /// From now on it is the user's, not a listener's.
  void hand_out() noexcept { coming_ = false; }

 protected:
  /// `most_control`: the longest message of the control connection.
  ControlledEndpoint(const std::shared_ptr<ControlledCore>& core, std::size_t most_control);

  // What a transport does.
  /// An introduction or `ready`, as it came.
  virtual Status take_control(ControlKind kind, std::span<const std::byte> bytes) = 0;
  /// Posts whatever can be posted, and says goodbye (try_goodbye) when that is due.
  virtual void pump() = 0;
  /// Everything that was sent has left this end.
  virtual bool all_sent() const = 0;
  /// Everything that the peer has sent before its goodbye, `messages` of them, is here and matched.
  virtual bool all_taken(std::uint32_t messages) const = 0;
  /// The peer needs nothing more of this end, as far as this end can tell.
  virtual bool settled(Clock::time_point now) const = 0;
  /// Why the connection is of no more use, now that everything is taken that the peer has said before.
  virtual Status broken() const { return broken_; }
  /// Stops the transfers and ends all requests as failed.
  virtual void drop() noexcept = 0;

  // Life
  /// Has begun to connect: the peer must answer in time.
  void begin_connecting(std::unique_ptr<Endpoint> control, std::span<const std::byte> hello);
  /// The same for an end that was accepted, as long as it needs further answers.
  void begin_accepting(std::span<const std::byte> hello);
  void become_ready() noexcept final;
  /// `request`: one of `said_`, each for one message.
  Status say(Request& request, std::vector<std::byte> what);
  /// The connection broke; what the peer had said before, on the control connection, is taken first.
  void on_broken(Status status);
  Status bad_data(std::string_view what) const;
  void try_goodbye();
  void check_finished();
  void check_closed(Clock::time_point now);

  std::optional<WaitingMessage> waiting(std::uint64_t tag, std::uint64_t bytes) const;

  ControlledCore* const core_;
  std::unique_ptr<Endpoint> control_;
  Status broken_;
  std::array<Request, 3> said_;
  bool open_ = false;  ///< the peer can receive
  bool goodbye_sent_ = false;
  bool goodbye_received_ = false;
  Clock::time_point goodbye_at_{};      ///< when it was sent
  std::uint32_t goodbye_messages_ = 0;  ///< of the one that was received
  bool at_control_ = false;             ///< what the control connection had to say was taken just now

 private:
  void expect_answers(std::span<const std::byte> hello);
  Status hear();
  Status take(std::span<const std::byte> bytes);
  void stop(const Status& why) noexcept final;

  Request heard_;
  std::vector<std::byte> hearing_;
  std::array<std::vector<std::byte>, 3> saying_;
  bool hearing_begun_ = false;
};

}  // namespace onebit::transport
