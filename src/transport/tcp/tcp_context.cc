// The Context of TCP: devices, listen, connect, and progress over the shared epoll set.
//
// progress() goes round: collect events, let every socket with work have one turn, look at timers when due;
// until something happened that a caller may wait for, or time is up. Threads: one at a time, except wake().
#include <algorithm>
#include <exception>

#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_core.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/transport.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kAutomaticFlows = 2;
/// Rounds of a progress(0) while there is always more.
constexpr int kMaxRounds = 16;
/// Of so many progress(0) one asks the epoll set, where the others may do without.
constexpr unsigned kLooks = 8;

/// TCP reads and writes any memory.
class TcpMemory final : public Memory {};

Status out_of_memory(const std::exception& e) {
  return Status::error(Code::kSystemError, "TCP transport: {}", e.what());
}

class TcpContext final : public Context {
 public:
  TcpContext(const Settings& settings, std::vector<Device> devices, std::uint32_t flows)
      : core_(std::make_shared<TcpCore>(settings)), devices_(std::move(devices)), flows_(flows) {}
  ~TcpContext() override = default;

  Status open() { return core_->poller.open(); }

  std::string_view name() const override { return "tcp"; }
  std::span<const Device> devices() const override { return devices_; }
  Result<std::unique_ptr<Listener>> listen(std::size_t device) override;
  Result<std::unique_ptr<Endpoint>> accept(Listener& listener) override;
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& handle,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<Memory>> register_memory(void* /*data*/, std::size_t /*bytes*/) override {
    return std::unique_ptr<Memory>(std::make_unique<TcpMemory>());
  }
  Status progress(milliseconds timeout, std::vector<Request*>& completed) override;
  Endpoint* failed() const override { return core_->failed.empty() ? nullptr : core_->failed.front(); }
  void wake() noexcept override { core_->poller.wake(); }
  int event_fd() const override {
    core_->poller.watch();
    return core_->poller.fd();
  }

 private:
  Status check_device(std::size_t device) const;
  Status run(milliseconds timeout);
  bool look();
  void tick(Clock::time_point now);

  std::shared_ptr<TcpCore> core_;
  std::vector<Device> devices_;
  std::uint32_t flows_;
  Clock::time_point next_tick_ = Clock::time_point::max();
  unsigned looks_ = 0;
};

Status TcpContext::check_device(std::size_t device) const {
  if (device < devices_.size()) return Status();
  return Status::error(Code::kInvalidArgument, "device {} of the TCP transport, which has {}", device,
                       devices_.size());
}

Result<std::unique_ptr<Listener>> TcpContext::listen(std::size_t device) try {
  ONEBIT_RETURN_IF_ERROR(check_device(device));
  auto made = TcpListener::open(core_, devices_[device]);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Listener>(std::move(*made));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Endpoint>> TcpContext::accept(Listener& listener) {
  auto* const own = dynamic_cast<TcpListener*>(&listener);
  if (own == nullptr) return Status(Code::kInvalidArgument, "TCP cannot accept for another transport");
  return own->accept_into(core_);
}

Result<std::unique_ptr<Endpoint>> TcpContext::connect(std::size_t device, const Handle& handle,
                                                      std::span<const std::byte> hello) try {
  ONEBIT_RETURN_IF_ERROR(check_device(device));
  if (hello.size() > kMaxHello) {
    return Status::error(Code::kInvalidArgument, "a hello of {} bytes, above the limit of {}", hello.size(),
                         kMaxHello);
  }
  ONEBIT_ASSIGN_OR_RETURN(const HandleContents to, decode_handle(handle));
  auto made = TcpEndpoint::connect(core_, devices_[device], to, flows_, hello);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Endpoint>(std::move(*made));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Status TcpContext::progress(milliseconds timeout, std::vector<Request*>& completed) try {
  core_->poller.enter();
  core_->polled = timeout.count() == 0 && core_->endpoints.size() == 1;
  const Status status = look() ? Status() : run(timeout);
  core_->tell(completed);
  core_->poller.leave();
  return status;
} catch (const std::exception& e) {
  core_->poller.leave();
  return out_of_memory(e);
}

/// A caller that polls one connection: most likely the next message comes where the last one came, and to
/// read from that flow takes less time than to ask the set first. True when that was done.
bool TcpContext::look() {
  if (!core_->polled || core_->recent == nullptr || core_->notable || core_->poller.watched() ||
      core_->poller.has_ready() || ++looks_ % kLooks == 0) {
    return false;
  }
  return core_->recent->endpoint.look_at(*core_->recent);
}

Status TcpContext::run(milliseconds timeout) {
  const Deadline deadline = timeout.count() < 0 ? Deadline::never() : Deadline::after(timeout);
  for (int round = 0;; ++round) {
    const bool wait = !core_->notable && !core_->poller.has_ready() && timeout.count() != 0;
    Poller::Wait happened = Poller::Wait::kNothing;
    if (wait) {
      const int limit = deadline.earlier(Deadline(next_tick_)).poll_timeout();
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(limit));
    } else {
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(0));
    }
    core_->poller.run_ready();
    const Clock::time_point now = Clock::now();
    if (core_->asked_tick != TcpCore::kNoTick) {
      next_tick_ = std::min(next_tick_, now + core_->asked_tick);
      core_->asked_tick = TcpCore::kNoTick;
    }
    if (now >= next_tick_) tick(now);
    if (core_->notable || happened == Poller::Wait::kWoken) return Status();
    if (timeout.count() == 0 && (!core_->poller.has_ready() || round >= kMaxRounds)) return Status();
    if (timeout.count() > 0 && deadline.passed()) return Status();
  }
}

void TcpContext::tick(Clock::time_point now) {
  // Those that need another one ask for it.
  next_tick_ = Clock::time_point::max();
  for (TcpListener* listener : core_->listeners) listener->on_tick(now);
  for (CommonEndpoint* endpoint : core_->endpoints) endpoint->on_tick(now);
  if (core_->asked_tick != TcpCore::kNoTick) next_tick_ = now + core_->asked_tick;
  core_->asked_tick = TcpCore::kNoTick;
}

}  // namespace

Result<std::unique_ptr<Context>> make_tcp_context(const Settings& settings, std::vector<Device> devices,
                                                  std::uint32_t flows) try {
  const std::uint32_t count = settings.tcp_flows > 0 ? settings.tcp_flows
                              : flows > 0            ? flows
                                                     : kAutomaticFlows;
  if (count > kMaxFlows) {
    return Status::error(Code::kInvalidArgument, "{} TCP flows to each peer, above the limit of {}", count,
                         kMaxFlows);
  }
  auto made = std::make_unique<TcpContext>(settings, std::move(devices), count);
  ONEBIT_RETURN_IF_ERROR(made->open());
  return std::unique_ptr<Context>(std::move(made));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Context>> make_tcp_context(const Settings& settings, const SocketAddress& toward,
                                                  std::uint32_t flows) {
  ONEBIT_ASSIGN_OR_RETURN(std::vector<Device> devices, tcp_devices(settings, toward));
  return make_tcp_context(settings, std::move(devices), flows);
}

}  // namespace onebit::transport
