// A listening socket of TCP: takes connections, proves them, and gathers the flows of one peer into an
// endpoint.
//
// Anybody may connect; until its handshake is done a connection is a Candidate: bounded in number and time,
// dropped at the first wrong byte. Invariant: a stranger costs one Candidate for a few seconds at most and
// never delays the others, whose handshakes go on in parallel. Threads: those of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "base/unique_socket.h"
#include "bootstrap/handshake.h"
#include "transport/tcp/tcp_core.h"
#include "transport/tcp/tcp_handle.h"
#include "transport/transport.h"

namespace onebit::transport {

class TcpListener final : public Listener {
 public:
  static Result<std::unique_ptr<TcpListener>> open(std::shared_ptr<TcpCore> core, const Device& device);
  ~TcpListener() override;

  const Handle& handle() const override { return handle_; }
  Result<std::unique_ptr<Endpoint>> accept() override { return accept_into(core_); }
  /// The endpoint belongs to `core`.
  Result<std::unique_ptr<Endpoint>> accept_into(const std::shared_ptr<TcpCore>& core);

  void on_tick(Clock::time_point now);

 private:
  /// A socket that listens; a device with several addresses has one for each.
  struct Door final : Source {
    Door(TcpListener& o, UniqueSocket socket) : owner(o), fd(std::move(socket)) {}
    ~Door() override = default;
    void on_ready() override { owner.take_connections(*this); }

    TcpListener& owner;
    UniqueSocket fd;
  };
  struct Candidate final : Source {
    Candidate(TcpListener& o, UniqueSocket socket, const SocketAddress& address)
        : owner(o),
          fd(std::move(socket)),
          peer(address),
          handshake(fd.get(), bootstrap::Role::kServer, o.key_, bootstrap::Purpose::kTransport) {}
    ~Candidate() override = default;
    void on_ready() override { owner.advance(*this); }

    TcpListener& owner;
    UniqueSocket fd;
    SocketAddress peer;
    bootstrap::Handshake handshake;
    FlowOpening opening;
    Clock::time_point since = Clock::now();
    std::list<Candidate>::iterator self;
  };
  /// The flows of one endpoint.
  struct Group {
    std::uint64_t id = 0;
    std::vector<UniqueSocket> flows;  ///< by index; empty where not yet there
    std::size_t have = 0;
    SocketAddress peer;
    std::vector<std::byte> hello;
    Clock::time_point last = Clock::now();
  };

  explicit TcpListener(std::shared_ptr<TcpCore> core) : core_(std::move(core)) {}
  void take_connections(Door& door);
  /// Makes room for one more candidate; false when none has been silent for long enough to go.
  bool make_room();
  void advance(Candidate& candidate);
  Status check_opening(Candidate& candidate);
  void join_group(Candidate& candidate);
  void drop(Candidate& candidate, const Status& why);
  void log_stranger(const SocketAddress& peer, std::string_view why);

  std::shared_ptr<TcpCore> core_;
  std::list<Door> doors_;
  Handle handle_;
  bootstrap::Key key_{};
  std::list<Candidate> candidates_;  ///< oldest first
  std::vector<Group> groups_;
  std::deque<Group> complete_;
  Status broken_;  ///< the last attempt to take a connection failed for a fault of ours
  Clock::time_point last_log_{};
  std::uint64_t unlogged_ = 0;
};

}  // namespace onebit::transport
