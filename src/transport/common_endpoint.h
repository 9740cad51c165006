// What the endpoints of all transports have, and what a context shares with them: the epoll set, requests in
// order, ended ones, timers.
//
// The core is held by shared_ptr, so that the order in which a user destroys context and endpoints does not
// matter. Invariant: after fail() no request is pending, and nothing reads or writes their memory any more.
// Threads: one at a time, except Poller::wake.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/settings.h"
#include "transport/poller.h"
#include "transport/request_list.h"
#include "transport/transport.h"

namespace onebit::transport {

class CommonEndpoint;
using Clock = std::chrono::steady_clock;

struct CommonCore {
  explicit CommonCore(const Settings& s) : settings(s) {}
  CommonCore(const CommonCore&) = delete;
  CommonCore& operator=(const CommonCore&) = delete;

  /// Has the timers looked at within `delay`.
  void ask_tick(std::chrono::milliseconds delay) noexcept { asked_tick = std::min(asked_tick, delay); }
  /// Moves requests that have ended to `completed`; what happened up to now is told then.
  void tell(std::vector<Request*>& completed);

  const Settings settings;
  Poller poller;
  bool notable = false;  ///< something happened for which progress() returns
  // Room for all endpoints is reserved in each of the three when one is made: adding never fails.
  std::vector<CommonEndpoint*> endpoints;
  std::vector<CommonEndpoint*> failed;     ///< in the order of failing
  std::vector<CommonEndpoint*> reporting;  ///< those with ended requests to report
  std::chrono::milliseconds asked_tick = kNoTick;

  static constexpr std::chrono::milliseconds kNoTick = std::chrono::milliseconds::max();

 protected:
  ~CommonCore() = default;
};

class CommonEndpoint : public Endpoint {
 public:
  ~CommonEndpoint() override;

  State state() const final { return state_; }
  const Status& status() const final { return status_; }
  std::span<const std::byte> hello() const final { return hello_; }
  bool closed() const final { return closed_ || state_ == State::kFailed; }
  void abort(const Status& reason) noexcept final;
  Counters counters() const final { return counters_; }

  /// Looks at what is due; asks for the next tick where one is needed.
  virtual void on_tick(Clock::time_point now) = 0;
  /// Moves requests that have ended to `completed`.
  void report(std::vector<Request*>& completed);
  void fail(Status status);

 protected:
  explicit CommonEndpoint(std::shared_ptr<CommonCore> core);

  // Life
  /// Ends the connection, telling the peer why where that is possible, and all requests as failed.
  virtual void stop(const Status& why) noexcept = 0;
  /// The peer must answer in time.
  void expect_answer();
  /// Whether it is still connecting: then it fails when the time is over.
  bool waits_for_answer(Clock::time_point now);
  bool usable() const noexcept { return state_ == State::kReady || state_ == State::kFinished; }
  /// The peer has said what it had to: messages may be sent and received.
  virtual void become_ready() noexcept;
  /// The peer has sent all of its messages: an error where another one is expected.
  void become_finished();

  // Requests
  Status prepare_send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                      std::uint32_t check);
  Status post(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check);
  bool has_posted(std::uint64_t tag) const noexcept;
  /// The posted receive that takes a message; null when there is none yet. An error when the two ends do not
  /// agree on the message.
  Result<Request*> posted_for(std::uint64_t tag, std::uint32_t check, std::uint64_t bytes);
  /// Takes out what posted_for has found.
  void take_posted(Request& request) noexcept;
  void end(Request& request, Request::State state) noexcept;
  /// Ends those of a list as failed.
  void fail_all(RequestList& list) noexcept;

  State state_ = State::kConnecting;
  std::vector<std::byte> hello_;
  Counters counters_;
  std::uint32_t next_send_ = 0;  ///< the sequence of the next message
  RequestList posted_;
  bool coming_ = false;  ///< still a listener's
  bool finishing_ = false;
  bool closed_ = false;

 private:
  Status check_usable(const Request& request) const;
  Request* find_posted(std::uint64_t tag, Request*& previous) const noexcept;

  const std::shared_ptr<CommonCore> common_;
  Status status_;
  RequestList ended_;  ///< with `notify`, not yet reported
  Clock::time_point opening_deadline_ = Clock::time_point::max();
};

}  // namespace onebit::transport
