// One end of a connection as NCCL has it: a send comm or a receive comm, with its requests.
//
// Each comm has a transport context of its own and shares nothing with any other object. So NCCL's rule, one
// thread at a time for each comm, is all that is needed, whatever its threads do with the others: the service
// thread makes a comm, the progress thread uses it, the service thread closes it. Only memory may be
// registered beside that. Nothing here blocks.
// Invariant: after the first error every call returns it, and the peer has been told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_socket.h"
#include "transport/transport.h"

namespace onebit::nccl_net {

/// What NCCL's tags are for: several senders behind one connection. They go through as they are.
using Tag = std::uint32_t;

inline constexpr int kMaxReceives = 8;  ///< of one multi-receive
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 30;

class Comm;

/// What NCCL holds as a request, from isend or irecv until `test` says done.
struct Operation {
  Comm* comm = nullptr;
  bool busy = false;
};

/// A connected endpoint with its context, as set-up hands it over.
struct Line {
  std::unique_ptr<transport::Context> context;
  std::unique_ptr<transport::Endpoint> endpoint;
  std::string device;  ///< for messages
};

class Comm {
 public:
  Comm(Line line, std::string_view what);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm();

  /// Moves what can be moved. Sets `done`, and then `sizes` (may be null), one for each message of the
  /// request, which is free again.
  virtual Status test(Operation& operation, bool& done, int* sizes) = 0;
  /// For the sends and receives of this comm. Any thread: NCCL registers while its progress thread is at
  /// work.
  /// `type`: of abi.h.
  Result<std::unique_ptr<transport::Memory>> register_memory(void* data, std::size_t bytes, int type);
  Result<std::unique_ptr<transport::Memory>> register_dma_buf(void* data, std::size_t bytes,
                                                              const transport::DmaBuf& buffer);
  /// Starts an orderly end; it has come to it when `closed`. Requests in flight make it a failure, which the
  /// peer is told.
  void finish();
  /// The comm may be destroyed without loss. Moves what can be moved.
  bool closed();

 protected:
  /// The error of this comm, if it has one; also for a comm that was inherited through a fork.
  Status usable() const;
  Status progress();
  /// Makes `status` the error of this comm and tells the peer.
  Status fail(const Status& status);
  /// The error of the endpoint, with what failed.
  Status endpoint_error() const;
  virtual bool idle() const = 0;

  transport::Context& context() { return *line_.context; }
  /// Messages may lie in the memory of GPUs.
  bool with_gpus() const {
    const transport::Device& device = line_.context->devices().front();
    return device.takes_peer_memory || device.takes_dma_bufs;
  }
  transport::Endpoint& endpoint() { return *line_.endpoint; }
  /// Requests must be there when the endpoint goes: for the destructors of classes that have them.
  void drop_endpoint() noexcept { line_.endpoint.reset(); }

 private:
  Line line_;
  std::string what_;
  Status error_;
  const std::uint32_t generation_ = UniqueSocket::process_generation();
  std::vector<transport::Request*> completed_;  ///< stays empty: no request asks to be reported
};

/// What the receiving end says to the sending one, in the tag of a message without contents: that messages of
/// a tag shall wait until a receive for them is posted, and that they may come.
namespace control {
inline constexpr std::uint64_t kHold = 1;
inline constexpr std::uint64_t kRelease = 2;
inline std::uint64_t encode(std::uint64_t kind, Tag tag) noexcept {
  return kind << 32 | tag;
}
}  // namespace control

}  // namespace onebit::nccl_net
