// What carries messages between two ranks: the one interface of all transports. transport/factory.h makes
// them.
//
// A Context holds the devices and the progress of everything made from it. A Listener hands out a Handle,
// which travels to the peer by other means (bootstrap, NCCL); the peer connects with it. An Endpoint is one
// end of a connection and carries messages both ways. Nothing ever blocks except Context::progress with a
// timeout.
//
// Messages carry a tag and a check word. A receive matches the oldest unmatched incoming message only if that
// has the receive's tag; the oldest posted receive of that tag takes it. An incoming message that no posted
// receive matches waits unread, and the following ones of its direction behind it (back-pressure). Requests
// complete in any order and may be tested in any order.
//
// Threads: a Context and all that came from it are used by one thread at a time, except Context::wake; and
// memory may be registered, and let go, by any thread as soon as the context has its connections.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "base/status.h"

namespace onebit::transport {

/// How to reach a Listener: opaque bytes, small enough for NCCL's 128-byte handles. Holds the key of its
/// connections.
struct Handle {
  std::array<std::byte, 120> bytes{};
};

/// A network device that connections can be bound to, or several that they stripe over.
struct Device {
  static constexpr std::size_t kMaxAddresses = 4;
  std::string name;
  SocketAddress address;
  std::vector<SocketAddress> more_addresses;  ///< of the further ones; connections are dealt out in turn
  std::vector<std::string> members;           ///< the names of all, where they are several
  std::uint32_t speed_mbps = 0;               ///< 0 = unknown
  std::string pci_path;                       ///< of /sys, empty for virtual devices
  // Memory of GPUs can be registered; given to a context, a message may lie there, where no processor reads
  // it:
  bool takes_dma_bufs = false;     ///< by Context::register_dma_buf
  bool takes_peer_memory = false;  ///< by its address, as the host's: a module of the kernel helps
  bool may_be_merged = false;      ///< with others of its transport, by `more_addresses` and `members`
};

/// Memory that was registered with a Context. TCP needs none: null is accepted everywhere.
class Memory {
 public:
  virtual ~Memory() = default;
};

/// What the driver of a device exports its memory as.
struct DmaBuf {
  int fd = -1;
  std::uint64_t offset = 0;  ///< of the range in it
};

/// Longer messages are an error.
inline constexpr std::uint64_t kMaxMessageBytes = 1ULL << 46;

/// One outstanding send or receive. Owned by the caller, who must keep it and the buffer in place while it is
/// pending; with `notify`, the Request until it is reported or its Endpoint is destroyed. Requests of a
/// destroyed Endpoint end as kFailed and are not reported.
struct Request {
  enum class State : std::uint8_t { kIdle, kPending, kDone, kFailed };
  State state = State::kIdle;
  bool notify = false;    ///< set by the caller: report it in Context::progress when it ends
  std::size_t bytes = 0;  ///< of the message, valid when kDone (a receive may get less than its capacity)
  void* user = nullptr;   ///< the caller's
  // For the transport's use while pending.
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  std::size_t transferred = 0;
  std::size_t assigned = 0;
  std::uint64_t tag = 0;
  std::uint32_t check = 0;
  std::uint32_t sequence = 0;
  Memory* memory = nullptr;
  Request* next = nullptr;
};

/// An incoming message that no posted receive matches.
struct WaitingMessage {
  std::uint64_t tag = 0;
  std::size_t bytes = 0;
  bool blocks = false;  ///< receives are posted: they wait until one with this tag is, too
};

/// Bytes since the connection was made; payload without headers, wire with them (as written to the sockets).
struct Counters {
  std::uint64_t payload_sent = 0;
  std::uint64_t payload_received = 0;
  std::uint64_t wire_sent = 0;
  std::uint64_t wire_received = 0;
};

/// What a transport says that has no way to memory of GPUs.
Status refuse_dma_buf(std::string_view transport, std::size_t bytes);

class Endpoint {
 public:
  enum class State : std::uint8_t { kConnecting, kReady, kFinished, kFailed };
  virtual ~Endpoint() = default;

  virtual State state() const = 0;
  /// Why it has failed, naming the peer's address; ok unless kFailed.
  virtual const Status& status() const = 0;
  /// The peer's address, for messages.
  virtual std::string peer() const = 0;
  /// What the connecting side gave to Context::connect.
  virtual std::span<const std::byte> hello() const = 0;

  /// Starts to send. May complete at once. Fails only for misuse or when the endpoint has failed or not yet
  /// connected, or its peer has closed: then nothing was started, and nothing is reported.
  virtual Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag,
                      std::uint32_t check, Memory* memory = nullptr) = 0;
  /// Starts to receive up to `capacity` bytes. A message that is longer, or has another check word, fails the
  /// endpoint (kInvalidUsage): the peers do not agree on what they do. In kFinished it returns kRemoteError.
  virtual Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag,
                         std::uint32_t check, Memory* memory = nullptr) = 0;

  /// Done when a GPU sees what has been received there, in memory of its own: the bytes may still be on their
  /// way when the receive has ended. The host's memory needs none of it. Requests and errors as with send.
  virtual Status flush(Request& request, const void* data, std::size_t bytes, Memory* memory = nullptr);

  /// The oldest incoming message while no posted receive matches it: nothing more arrives until one does.
  /// Nothing else, and where a transport cannot tell. progress() returns when one comes up that `blocks`.
  virtual std::optional<WaitingMessage> waiting_message() const = 0;

  /// Sends all that is pending, then says goodbye: the peer sees kFinished and no error unless it still
  /// expects messages. Called before destruction at an orderly end; goes on in progress(); `closed` says when
  /// the endpoint may be destroyed without loss (or has failed). An endpoint that is destroyed before is to
  /// its peer a failure.
  virtual void finish() = 0;
  virtual bool closed() const = 0;
  /// Fails the endpoint here, and tells the peer why where the stream allows. Pending requests become
  /// kFailed. Never blocks.
  virtual void abort(const Status& reason) noexcept = 0;
  virtual Counters counters() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual const Handle& handle() const = 0;
  /// The next complete connection; null when there is none yet: Context::progress brings them in. Strangers
  /// are dropped and logged at INFO. An error means that the listener itself is broken (file descriptors, the
  /// device); it may mend, and later calls may succeed.
  virtual Result<std::unique_ptr<Endpoint>> accept() = 0;
};

class Context {
 public:
  virtual ~Context() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const Device> devices() const = 0;

  /// Returns at once. `device` is an index into devices().
  virtual Result<std::unique_ptr<Listener>> listen(std::size_t device) = 0;
  /// As Listener::accept, for a listener of another context of the same transport: the endpoint belongs to
  /// this one, and may be used by another thread than the listener. Both contexts must make progress.
  virtual Result<std::unique_ptr<Endpoint>> accept(Listener& listener) = 0;
  /// Returns at once with an endpoint in kConnecting; progress() brings it to kReady, at the latest when the
  /// peer has accepted it, or kFailed. `hello` (up to 64 bytes) is handed to the acceptor, authenticated.
  virtual Result<std::unique_ptr<Endpoint>> connect(std::size_t device, const Handle& handle,
                                                    std::span<const std::byte> hello) = 0;
  virtual Result<std::unique_ptr<Memory>> register_memory(void* data, std::size_t bytes) = 0;
  /// Memory of a GPU, which has it at the address `data`. The descriptor may be closed afterwards.
  virtual Result<std::unique_ptr<Memory>> register_dma_buf(void* data, std::size_t bytes,
                                                           const DmaBuf& buffer);

  /// Moves what can be moved, and waits up to `timeout` (0: not at all; negative: without limit) until
  /// something has happened that a caller may wait for: a request has ended (with `notify` or not), an
  /// endpoint has changed its state or is closed, a listener has a connection or is broken, or wake().
  /// Appends requests with `notify` that have ended to `completed`. Errors only for faults of the context; an
  /// endpoint's failure is in its status, and its failed requests are in `completed`.
  virtual Status progress(std::chrono::milliseconds timeout, std::vector<Request*>& completed) = 0;
  /// The first endpoint that has failed since the context was made and still exists; null if none has.
  virtual Endpoint* failed() const = 0;
  /// Makes a progress() that waits, or the next one, return. Any thread; async-signal-safe.
  virtual void wake() noexcept = 0;
  /// Becomes readable when progress() has something to do: for waiting on several contexts. Deadlines (dead
  /// links, silent strangers, the last step of closing) need a progress() about once a second all the same.
  /// -1 if there is none.
  virtual int event_fd() const = 0;
};

}  // namespace onebit::transport
