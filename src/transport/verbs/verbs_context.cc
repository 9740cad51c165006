// The Context of verbs: devices, listen, connect, and progress by polling.
//
// progress() goes round: poll every connection's completion queue, look at the control connections when they
// have something to do; until something happened that a caller may wait for, or time is up. Before it sleeps
// it asks for events and polls once more. Threads: one at a time, except wake().
#include <algorithm>
#include <exception>

#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_handle.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_core.h"
#include "transport/verbs/verbs_endpoint.h"
#include "transport/verbs/verbs_listener.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

/// The deadlines of the control connections.
constexpr milliseconds kControlTick{1000};
/// So many calls of progress() that need not wait poll without asking the system for what else there is.
constexpr unsigned kPollsPerLook = 64;

Status out_of_memory(const std::exception& e) {
  return Status::error(Code::kSystemError, "verbs transport: {}", e.what());
}

/// What a user holds registered, with every port that was open then.
class VerbsMemory final : public Memory {
 public:
  VerbsMemory(std::shared_ptr<VerbsCore> core, std::vector<RegisteredMemory::Hold> holds)
      : core_(std::move(core)), holds_(std::move(holds)) {}
  ~VerbsMemory() override = default;

 private:
  std::shared_ptr<VerbsCore> core_;
  std::vector<RegisteredMemory::Hold> holds_;
};

class VerbsContext final : public Context {
 public:
  VerbsContext(std::shared_ptr<VerbsCore> core, std::vector<Device> devices)
      : core_(std::move(core)), devices_(std::move(devices)) {}
  ~VerbsContext() override = default;

  Status open();

  std::string_view name() const override { return "verbs"; }
  std::span<const Device> devices() const override { return devices_; }
  Result<std::unique_ptr<Listener>> listen(std::size_t device) override;
  Result<std::unique_ptr<Endpoint>> accept(Listener& listener) override;
  Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& handle,
                                            std::span<const std::byte> hello) override;
  Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) override;
  Status progress(milliseconds timeout, std::vector<Request*>& completed) override;
  Endpoint* failed() const override { return core_->failed.empty() ? nullptr : core_->failed.front(); }
  void wake() noexcept override { core_->poller.wake(); }
  int event_fd() const override;

 private:
  /// The control context's file in our epoll set.
  struct ControlEvents final : Source {
    explicit ControlEvents(VerbsCore& c) : core(c) {}
    ~ControlEvents() override = default;
    void on_ready() override {
      readable = false;
      core.control_due = true;
    }
    VerbsCore& core;
  };

  Status run(milliseconds timeout);
  bool poll();
  Status arm();
  Status look();
  void take_asked_tick(Clock::time_point now) noexcept;

  std::shared_ptr<VerbsCore> core_;
  std::vector<Device> devices_;
  ControlEvents control_events_{*core_};
  std::vector<Request*> control_completed_;  ///< stays empty: no request of ours asks to be reported
  Clock::time_point next_tick_ = Clock::time_point::max();
  Clock::time_point next_control_ = Clock::time_point::min();
  unsigned polls_ = 0;
  mutable bool watched_ = false;
};

Status VerbsContext::open() {
  ONEBIT_RETURN_IF_ERROR(core_->poller.open());
  Device way{devices_.front().name, devices_.front().address, {}, 0, {}, false};
  Settings settings = core_->settings;
  settings.tcp_flows = 1;
  ONEBIT_ASSIGN_OR_RETURN(core_->control, make_tcp_context(settings, {std::move(way)}));
  return core_->poller.add(core_->control->event_fd(), control_events_);
}

Result<std::unique_ptr<Listener>> VerbsContext::listen(std::size_t device) try {
  ONEBIT_RETURN_IF_ERROR(core_->port(device).status());
  ONEBIT_ASSIGN_OR_RETURN(auto control, core_->control->listen(0));
  return std::unique_ptr<Listener>(std::make_unique<VerbsListener>(core_, device, std::move(control)));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Endpoint>> VerbsContext::accept(Listener& listener) try {
  auto* const own = dynamic_cast<VerbsListener*>(&listener);
  if (own == nullptr) return Status(Code::kInvalidArgument, "verbs cannot accept for another transport");
  return own->accept_into(core_);
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Endpoint>> VerbsContext::connect(std::size_t device, const Handle& handle,
                                                        std::span<const std::byte> hello) try {
  if (hello.size() > kMaxUserHello) {
    return Status::error(Code::kInvalidArgument, "a hello of {} bytes, above the limit of {}", hello.size(),
                         kMaxUserHello);
  }
  if (!decode_handle(marked(handle)).ok()) {
    return Status(Code::kInvalidArgument,
                  "the handle to connect to was not made by the verbs transport of this version of onebit");
  }
  ONEBIT_ASSIGN_OR_RETURN(auto made, VerbsEndpoint::connect(core_, device, marked(handle), hello));
  return std::unique_ptr<Endpoint>(std::move(made));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

Result<std::unique_ptr<Memory>> VerbsContext::register_memory(void* data, std::size_t bytes) try {
  std::vector<RegisteredMemory::Hold> holds;
  for (const auto& port : core_->open_ports()) {
    if (port == nullptr || bytes == 0) continue;
    ONEBIT_ASSIGN_OR_RETURN(auto hold, port->memory().hold(data, bytes, true));
    holds.push_back(std::move(hold));
  }
  return std::unique_ptr<Memory>(std::make_unique<VerbsMemory>(core_, std::move(holds)));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

int VerbsContext::event_fd() const {
  watched_ = true;
  core_->poller.watch();
  return core_->poller.fd();
}

// --- Progress ---

Status VerbsContext::progress(milliseconds timeout, std::vector<Request*>& completed) try {
  core_->poller.enter();
  Status status = run(timeout);
  for (VerbsEndpoint* endpoint : core_->reporting) endpoint->report(completed);
  core_->reporting.clear();
  core_->notable = false;
  if (watched_ && status.ok()) {
    status = arm();
    if (poll()) core_->poller.wake();
  }
  core_->poller.leave();
  return status;
} catch (const std::exception& e) {
  core_->poller.leave();
  return out_of_memory(e);
}

Status VerbsContext::run(milliseconds timeout) {
  const Deadline deadline = timeout.count() > 0 ? Deadline::after(timeout) : Deadline::never();
  for (;;) {
    const bool polled = poll();
    const bool returns = core_->notable || timeout.count() == 0;
    if (returns && !core_->control_due && ++polls_ < kPollsPerLook) return Status();
    polls_ = 0;
    Poller::Wait happened = Poller::Wait::kNothing;
    if (returns || core_->control_due || polled) {
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(0));
    } else {
      ONEBIT_RETURN_IF_ERROR(arm());
      if (poll()) continue;
      const Clock::time_point now = Clock::now();
      take_asked_tick(now);
      const Clock::time_point next = std::min(next_tick_, now + kControlTick);
      ONEBIT_ASSIGN_OR_RETURN(happened, core_->poller.wait(deadline.earlier(Deadline(next)).poll_timeout()));
    }
    core_->poller.run_ready();
    ONEBIT_RETURN_IF_ERROR(look());
    if (core_->notable || happened == Poller::Wait::kWoken) return Status();
    if (timeout.count() == 0 || (timeout.count() > 0 && deadline.passed())) return Status();
  }
}

bool VerbsContext::poll() {
  bool any = false;
  for (VerbsEndpoint* const endpoint : core_->endpoints) any |= endpoint->poll();
  return any;
}

Status VerbsContext::arm() {
  for (VerbsEndpoint* const endpoint : core_->endpoints) ONEBIT_RETURN_IF_ERROR(endpoint->arm());
  return Status();
}

void VerbsContext::take_asked_tick(Clock::time_point now) noexcept {
  if (core_->asked_tick == VerbsCore::kNoTick) return;
  next_tick_ = std::min(next_tick_, now + core_->asked_tick);
  core_->asked_tick = VerbsCore::kNoTick;
}

/// At the control connections and the timers, where it is time.
Status VerbsContext::look() {
  const Clock::time_point now = Clock::now();
  take_asked_tick(now);
  if (now >= next_tick_) {
    // Those that need another one ask for it.
    next_tick_ = Clock::time_point::max();
    for (VerbsEndpoint* const endpoint : core_->endpoints) endpoint->on_tick(now);
  }
  if (!core_->control_due && now < next_control_) return Status();
  next_control_ = now + kControlTick;
  core_->control_due = false;
  ONEBIT_RETURN_IF_ERROR(core_->control->progress(milliseconds(0), control_completed_));
  for (VerbsEndpoint* const endpoint : core_->endpoints) endpoint->on_control();
  return Status();
}

/// The ports that carry the devices' names.
Result<std::vector<VerbsPort>> ports_of(const VerbsLibrary& library, const std::vector<Device>& devices) {
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<VerbsPort> all, all_ports(library));
  std::vector<VerbsPort> found;
  for (const Device& device : devices) {
    const auto port =
        std::find_if(all.begin(), all.end(), [&](const VerbsPort& p) { return p.name() == device.name; });
    if (port == all.end() || !device.more_addresses.empty()) {
      return Status::error(Code::kInvalidArgument, "{} is no RDMA port of this machine", device.name);
    }
    found.push_back(*port);
  }
  return found;
}

Result<std::vector<VerbsPort>> chosen_ports(const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const VerbsLibrary* const library, verbs_library());
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<VerbsPort> all, all_ports(*library));
  return choose_ports(all, settings.ib_hca);
}

}  // namespace

Result<std::string> verbs_fabric(const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const auto ports, chosen_ports(settings));
  ONEBIT_ASSIGN_OR_RETURN(const PortAddress address,
                          choose_address(ports.front(), settings.ib_gid_index, settings.socket_family));
  return fabric_of(ports.front(), address);
}

Result<std::vector<Device>> verbs_devices(const Settings& settings, const SocketAddress& toward) {
  ONEBIT_ASSIGN_OR_RETURN(const auto ports, chosen_ports(settings));
  ONEBIT_ASSIGN_OR_RETURN(const auto ways, tcp_devices(settings, toward));
  std::vector<Device> devices;
  for (const VerbsPort& port : ports) {
    ONEBIT_RETURN_IF_ERROR(choose_address(port, settings.ib_gid_index, settings.socket_family).status());
    devices.push_back({port.name(), ways.front().address, {}, port.speed_mbps, port.pci_path, false});
  }
  return devices;
}

Result<std::unique_ptr<Context>> make_verbs_context(const Settings& settings, std::vector<Device> devices,
                                                    const QueueSizes& sizes) try {
  if (devices.empty()) return Status(Code::kInvalidArgument, "a verbs context without a device");
  ONEBIT_ASSIGN_OR_RETURN(const VerbsLibrary* const library, verbs_library());
  ONEBIT_ASSIGN_OR_RETURN(auto ports, ports_of(*library, devices));
  auto core = std::make_shared<VerbsCore>(settings, *library, std::move(ports), sizes);
  auto made = std::make_unique<VerbsContext>(std::move(core), std::move(devices));
  ONEBIT_RETURN_IF_ERROR(made->open());
  return std::unique_ptr<Context>(std::move(made));
} catch (const std::exception& e) {
  return out_of_memory(e);
}

}  // namespace onebit::transport
