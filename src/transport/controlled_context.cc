#include "transport/controlled_context.h"

#include <algorithm>
#include <exception>

#include "transport/controlled_endpoint.h"
#include "transport/controlled_listener.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_handle.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

/// The deadlines of the control connections.
constexpr milliseconds kControlTick{1000};
/// So many calls of progress() that need not wait poll without asking the system for what else there is.
constexpr unsigned kPollsPerLook = 64;

class ControlledContext final : public Context {
 public:
  ControlledContext(std::shared_ptr<ControlledCore> core, std::vector<Device> devices)
      : core_(std::move(core)), devices_(std::move(devices)) {}
  ~ControlledContext() override = default;

  Status open();

  std::string_view name() const override { return core_->name(); }
  std::span<const Device> devices() const override { return devices_; }
  Result<std::unique_ptr<Listener>> listen(std::size_t device) override;
  Result<std::unique_ptr<Endpoint>> accept(Listener& listener) override;
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& handle,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) override;
  Result<std::unique_ptr<Memory>> register_dma_buf(void* data, std::size_t bytes,
                                                   const DmaBuf& buffer) override;
  Status progress(milliseconds timeout, std::vector<Request*>& completed) override;
  Endpoint* failed() const override { return core_->failed.empty() ? nullptr : core_->failed.front(); }
  void wake() noexcept override { core_->poller.wake(); }
  int event_fd() const override;

 private:
  /// The control context's file in our epoll set.
  struct ControlEvents final : Source {
    explicit ControlEvents(ControlledCore& c) : core(c) {}
    ~ControlEvents() override = default;
    void on_ready() override {
      readable = false;
      core.control_due = true;
    }
    ControlledCore& core;
  };

  Status out_of_memory(const std::exception& e) const {
    return Status::error(Code::kSystemError, "{} transport: {}", name(), e.what());
  }
  Status run(milliseconds timeout);
  Status look();
  void take_asked_tick(Clock::time_point now) noexcept;

  std::shared_ptr<ControlledCore> core_;
  std::vector<Device> devices_;
  ControlEvents control_events_{*core_};
  std::vector<Request*> control_completed_;  ///< stays empty: no request of ours asks to be reported
  Clock::time_point next_tick_ = Clock::time_point::max();
  Clock::time_point next_control_ = Clock::time_point::min();
  unsigned polls_ = 0;
  mutable bool watched_ = false;
};

Status ControlledContext::open() {
  ONEBIT_RETURN_IF_ERROR(core_->poller.open());
  Device way;
  way.name = devices_.front().name;
  way.address = devices_.front().address;
  Settings settings = core_->settings;
  settings.tcp_flows = 1;
  ONEBIT_ASSIGN_OR_RETURN(core_->control, make_tcp_context(settings, {std::move(way)}));
  return core_->poller.add(core_->control->event_fd(), control_events_);
}

Result<std::unique_ptr<Listener>> ControlledContext::listen(std::size_t device) try {
  ONEBIT_RETURN_IF_ERROR(core_->check_device(device));
  ONEBIT_ASSIGN_OR_RETURN(auto control, core_->control->listen(0));
  return std::unique_ptr<Listener>(std::make_unique<ControlledListener>(core_, device, std::move(control)));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Endpoint>> ControlledContext::accept(Listener& listener) try {
  auto* const own = dynamic_cast<ControlledListener*>(&listener);
  if (own == nullptr || !own->is_of(*core_)) {
    return Status::error(Code::kInvalidArgument, "{} cannot accept for another transport", name());
  }
  return own->accept_into(*core_);
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Endpoint>> ControlledContext::connect(std::size_t device, const Handle& handle,
                                                             std::span<const std::byte> hello) try {
  ONEBIT_RETURN_IF_ERROR(core_->check_device(device));
  if (hello.size() > kMaxUserHello) {
    return Status::error(Code::kInvalidArgument, "a hello of {} bytes, above the limit of {}", hello.size(),
                         kMaxUserHello);
  }
  const Handle control = core_->marked(handle);
  if (!decode_handle(control).ok()) {
    return Status::error(
        Code::kInvalidArgument,
        "the handle to connect to was not made by the {} transport of this version of onebit", name());
  }
  return core_->connect(device, control, hello);
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Memory>> ControlledContext::register_memory(void* data, std::size_t bytes) try {
  return core_->register_memory(data, bytes);
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Memory>> ControlledContext::register_dma_buf(void* data, std::size_t bytes,
                                                                    const DmaBuf& buffer) try {
  return core_->register_dma_buf(data, bytes, buffer);
} catch (const std::exception& e) {
  return out_of_memory(e);
}

int ControlledContext::event_fd() const {
  watched_ = true;
  core_->poller.watch();
  return core_->poller.fd();
}

// --- Progress ---

Status ControlledContext::progress(milliseconds timeout, std::vector<Request*>& completed) try {
  core_->poller.enter();
  Status status = run(timeout);
  core_->tell(completed);
  if (watched_ && status.ok()) {
    status = core_->arm();
    if (core_->poll()) core_->poller.wake();
  }
  core_->poller.leave();
  return status;
} catch (const std::exception& e) {
  core_->poller.leave();
  return out_of_memory(e);
}

Status ControlledContext::run(milliseconds timeout) {
  const Deadline deadline = timeout.count() > 0 ? Deadline::after(timeout) : Deadline::never();
  for (;;) {
    const bool polled = core_->poll();
    const bool returns = core_->notable || timeout.count() == 0;
    if (returns && !core_->control_due && ++polls_ < kPollsPerLook) return Status();
    polls_ = 0;
    Poller::Wait happened = Poller::Wait::kNothing;
    if (returns || core_->control_due || polled) {
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(0));
    } else {
      ONEBIT_RETURN_IF_ERROR(core_->arm());
      const bool more = core_->poll();
      const Clock::time_point now = Clock::now();
      take_asked_tick(now);
      const Deadline next(std::min(next_tick_, now + kControlTick));
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(more ? 0 : deadline.earlier(next).poll_timeout()));
    }
    core_->poller.run_ready();
    ONEBIT_RETURN_IF_ERROR(look());
    if (core_->notable || happened == Poller::Wait::kWoken) return Status();
    if (timeout.count() == 0 || (timeout.count() > 0 && deadline.passed())) return Status();
  }
}

void ControlledContext::take_asked_tick(Clock::time_point now) noexcept {
  if (core_->asked_tick == ControlledCore::kNoTick) return;
  next_tick_ = std::min(next_tick_, now + core_->asked_tick);
  core_->asked_tick = ControlledCore::kNoTick;
}

/// At the control connections and the timers, where it is time.
Status ControlledContext::look() {
  const Clock::time_point now = Clock::now();
  take_asked_tick(now);
  if (now >= next_tick_) {
    // Those that need another one ask for it.
    next_tick_ = Clock::time_point::max();
    for (CommonEndpoint* const endpoint : core_->endpoints) endpoint->on_tick(now);
  }
  if (!core_->control_due && now < next_control_) return Status();
  next_control_ = now + kControlTick;
  core_->control_due = false;
  ONEBIT_RETURN_IF_ERROR(core_->control->progress(milliseconds(0), control_completed_));
  for (CommonEndpoint* const endpoint : core_->endpoints) {
    static_cast<ControlledEndpoint*>(endpoint)->on_control();
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Context>> make_controlled_context(std::shared_ptr<ControlledCore> core,
                                                         std::vector<Device> devices) {
  auto made = std::make_unique<ControlledContext>(std::move(core), std::move(devices));
  ONEBIT_RETURN_IF_ERROR(made->open());
  return std::unique_ptr<Context>(std::move(made));
}

}  // namespace onebit::transport
