// What one init of NCCL's made: the set-up of connections, and all of it that has not come to its end.
//
// NCCL 2.28 and later have an instance for each communicator; with older ones the process has one. An abort
// in the middle of set-up drops listeners and half-open connections without a call, so the instance keeps
// them and they end with it. Comms that NCCL has been given are its own. Threads: any, at once; a mutex
// guards the tables and is not held during calls of the transport, but for listeners, which NCCL uses one
// thread at a time. Nothing here blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "nccl_net/devices.h"
#include "nccl_net/receive_comm.h"
#include "nccl_net/send_comm.h"

namespace onebit::nccl_net {

using Clock = std::chrono::steady_clock;

/// A listener for one peer or several, one after the other.
class ListenComm {
 public:
  static Result<std::unique_ptr<ListenComm>> open(std::shared_ptr<const Setup> setup, int device,
                                                  std::uint32_t traffic_class);
  const transport::Handle& handle() const { return listener_->handle(); }
  /// The next connection; null when there is none yet. kTimeout when none has come for ONEBIT_TIMEOUT.
  Result<std::unique_ptr<ReceiveComm>> accept();

 private:
  ListenComm(std::shared_ptr<const Setup> setup, int device, std::uint32_t traffic_class)
      : setup_(std::move(setup)), device_(device), traffic_class_(traffic_class) {}

  std::shared_ptr<const Setup> setup_;
  int device_;
  std::uint32_t traffic_class_;
  std::string device_name_;
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Context> next_;  ///< for the next connection
  const std::uint32_t generation_ = UniqueSocket::process_generation();
  Clock::time_point waiting_since_{};  ///< of accept()
};

class Instance {
 public:
  /// `traffic_class`: of its connections, 0 for none.
  Instance(std::shared_ptr<Setup> setup, std::uint32_t traffic_class)
      : setup_(std::move(setup)), traffic_class_(traffic_class) {}

  Setup& setup() const { return *setup_; }
  /// `handle` has abi::kHandleBytes, and is filled.
  Result<std::unique_ptr<ListenComm>> listen(int device, std::byte* handle);
  /// Null while it is not yet connected: to be called again with the same handle, in which the state of the
  /// attempt is noted until then. `traffic_class` is of use where the instance has none.
  Result<std::unique_ptr<SendComm>> connect(int device, std::byte* handle, std::uint32_t traffic_class);

 private:
  struct Attempt {
    int device = 0;
    transport::Handle handle;
    std::unique_ptr<transport::Context> context;
    std::unique_ptr<transport::Endpoint> endpoint;  ///< null between two tries
    std::string device_name;
    std::uint32_t tries = 0;
    Clock::time_point next_try{};
    Clock::time_point last_call{};
  };
  using Attempts = std::map<std::uint64_t, std::unique_ptr<Attempt>>;

  Result<std::unique_ptr<Attempt>> begin(int device, const transport::Handle& handle,
                                         std::uint32_t traffic_class) const;
  /// The attempt of that number, if it is one to this handle.
  std::unique_ptr<Attempt> take(std::uint64_t number, int device, const transport::Handle& handle);
  void drop_forgotten();
  Status go_on(Attempt& attempt) const;

  const std::shared_ptr<Setup> setup_;
  const std::uint32_t traffic_class_;
  std::mutex mutex_;
  Attempts attempts_;
};

}  // namespace onebit::nccl_net
