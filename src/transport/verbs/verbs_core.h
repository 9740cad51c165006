// What the context, its listeners and its endpoints share: the open ports, the control connections' context,
// the epoll set, ended requests, timers.
//
// Held by shared_ptr, so that the order in which a user destroys them does not matter. Threads: one at a
// time, except Poller::wake. In a forked child everything may be destroyed, and nothing else; the parent goes
// on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/settings.h"
#include "transport/poller.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {

class VerbsEndpoint;
using Clock = std::chrono::steady_clock;

class VerbsCore final : public DeviceListener {
 public:
  VerbsCore(const Settings& s, const VerbsLibrary& l, std::vector<VerbsPort> p, const QueueSizes& q)
      : settings(s), sizes(q), library_(l), ports_(std::move(p)), open_(ports_.size()) {}
  ~VerbsCore() = default;

  /// The port with this index, opened.
  Result<OpenPort*> port(std::size_t index);
  std::span<const std::unique_ptr<OpenPort>> open_ports() const noexcept { return open_; }

  void on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) override;
  /// Has the timers looked at within `delay`.
  void ask_tick(std::chrono::milliseconds delay) noexcept { asked_tick = std::min(asked_tick, delay); }

  const Settings settings;
  const QueueSizes sizes;
  Poller poller;
  std::unique_ptr<Context> control;  ///< of TCP
  bool control_due = true;           ///< it may have something to do
  bool notable = false;              ///< something happened for which progress() returns
  // Room for all endpoints is reserved in each of the three when one is made: adding never fails.
  std::vector<VerbsEndpoint*> endpoints;
  std::vector<VerbsEndpoint*> failed;     ///< in the order of failing
  std::vector<VerbsEndpoint*> reporting;  ///< those with ended requests to report
  std::chrono::milliseconds asked_tick = kNoTick;

  static constexpr std::chrono::milliseconds kNoTick = std::chrono::milliseconds::max();

 private:
  const VerbsLibrary& library_;
  std::vector<VerbsPort> ports_;
  std::vector<std::unique_ptr<OpenPort>> open_;  ///< by index; null until first used
};

}  // namespace onebit::transport
