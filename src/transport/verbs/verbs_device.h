// An opened port: its device's context, protection domain, completion channel and registered memory.
//
// One for each port that a context uses, made at first use. Invariant: it outlives what is made on it.
// Threads: those of the context.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/settings.h"
#include "transport/poller.h"
#include "transport/verbs/verbs_library.h"
#include "transport/verbs/verbs_memory.h"
#include "transport/verbs/verbs_ports.h"

namespace onebit::transport {

/// A file of the device in the epoll set, whose events `owner` takes.
template <typename Owner, void (Owner::*take)()>
class DeviceEvents final : public Source {
 public:
  explicit DeviceEvents(Owner& owner) : owner_(owner) {}
  ~DeviceEvents() override = default;
  void on_ready() override { (owner_.*take)(); }

 private:
  Owner& owner_;
};

/// What an event of the device means for the connections over it.
class DeviceListener {
 public:
  /// `pair` and `completions`: what is in error; both null when it is the whole device.
  virtual void on_device_error(const ibv_qp* pair, const ibv_cq* completions, std::string_view what) = 0;

 protected:
  ~DeviceListener() = default;
};

class OpenPort {
 public:
  /// `flushed`: for memory of GPUs (verbs_memory.h).
  static Result<std::unique_ptr<OpenPort>> open(const VerbsLibrary& library, const VerbsPort& port,
                                                const PortAddress& address, bool flushed, Poller& poller,
                                                DeviceListener& listener);
  OpenPort(const OpenPort&) = delete;
  OpenPort& operator=(const OpenPort&) = delete;
  ~OpenPort();

  const VerbsLibrary& library() const noexcept { return *library_; }
  const VerbsPort& port() const noexcept { return port_; }
  const PortAddress& address() const noexcept { return address_; }
  ibv_context* context() const noexcept { return context_.get(); }
  ibv_pd* domain() const noexcept { return domain_.get(); }
  ibv_comp_channel* channel() const noexcept { return channel_.get(); }
  RegisteredMemory& memory() noexcept { return *memory_; }

 private:
  OpenPort(const VerbsLibrary& library, const VerbsPort& port, const PortAddress& address, Poller& poller,
           DeviceListener& listener)
      : library_(&library), port_(port), address_(address), poller_(poller), listener_(listener) {}
  void take_completion_events();
  void take_device_events();

  const std::uint32_t generation_ = UniqueSocket::process_generation();
  const VerbsLibrary* library_;
  VerbsPort port_;
  PortAddress address_;
  Poller& poller_;
  DeviceListener& listener_;
  VerbsDevice context_;
  VerbsDomain domain_;
  VerbsChannel channel_;
  std::unique_ptr<RegisteredMemory> memory_;
  DeviceEvents<OpenPort, &OpenPort::take_completion_events> completion_events_{*this};
  DeviceEvents<OpenPort, &OpenPort::take_device_events> device_events_{*this};
};

}  // namespace onebit::transport
