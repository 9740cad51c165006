// The two processes of a measurement: a plain TCP connection between them, over which they agree, and then
// the comms of a net plugin, one each way.
//
// A tool, not a service: one peer, one thread. The plain connection is also what the plugin is compared with.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/socket.h"
#include "base/status.h"
#include "nccl_net_driver/net_library.h"

namespace onebit::perf {

/// The plain connection, with blocking calls that end after a minute of silence.
class Plain {
 public:
  static Result<Plain> listen(std::uint16_t port);
  /// Tries for 10 s.
  static Result<Plain> connect(const std::string& host, std::uint16_t port);

  Status send(std::span<const std::byte> bytes);
  /// With `spin`, without sleeping.
  Status receive(std::span<std::byte> bytes, bool spin = false);
  template <typename T>
  Status send_value(const T& value) {
    return send(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  Status receive_value(T& value) {
    return receive(std::as_writable_bytes(std::span(&value, 1)));
  }
  /// Both wait for each other.
  Status meet();

 private:
  explicit Plain(UniqueSocket socket) : socket_(std::move(socket)) {}
  UniqueSocket socket_;
};

/// The comms of this process.
class Comms {
 public:
  /// Over device `device` of either end. When nothing moves, a test gives way as NCCL's progress thread does;
  /// with `pause` above 0 it sleeps so long. An error says which call of the plugin failed.
  static Result<Comms> make(const nccl_net::Net& net, int device, Plain& plain,
                            std::chrono::microseconds pause = {});
  Comms(Comms&& other) noexcept
      : net_(other.net_),
        pause_(other.pause_),
        ctx_(std::exchange(other.ctx_, nullptr)),
        send_(std::exchange(other.send_, nullptr)),
        receive_(std::exchange(other.receive_, nullptr)) {}
  Comms& operator=(Comms&&) = delete;
  ~Comms();

  /// Starts; `request` is null when it must be tried again later.
  Status send(const void* data, std::size_t bytes, void*& request);
  Status receive(void* data, std::size_t bytes, void*& request);
  /// `done`, and the size, once the request has ended.
  Status test(void* request, bool& done, int& size);
  /// The whole of one message, without sleeping.
  Status send_now(const void* data, std::size_t bytes);
  Status receive_now(void* data, std::size_t bytes);

 private:
  Comms(const nccl_net::Net& net, std::chrono::microseconds pause) : net_(&net), pause_(pause) {}
  Status finish(void* request);
  const nccl_net::Net* net_;
  std::chrono::microseconds pause_;
  void* ctx_ = nullptr;
  void* send_ = nullptr;
  void* receive_ = nullptr;
};

}  // namespace onebit::perf
