// One TCP connection of an endpoint: its socket, what is being written to it, what has been read from it.
//
// Sending: up to kMaxBatch segments are committed to a flow at a time and written by gathering; payloads that
// are lent to the kernel are written alone, as headers are not lent. Receiving:
// a staging buffer takes headers and small payloads; the rest of a large payload is read straight to its
// destination, with the next header behind it. Where small messages are polled for, they are peeked at: the
// kernel acknowledges what is taken from it there and then, which costs a third of a small message's time. So
// they stay in the socket until they are several or no more come. A flow whose next header belongs to a
// message that no receive matches yet is parked: nothing more is read from it. Invariant: bytes on the socket
// are consumed in order, and `out` is only changed at its end or by what the kernel has taken; the last
// `peeked` bytes before `end` are also the first in the socket. Threads: those of the context.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/unique_socket.h"
#include "bootstrap/handshake.h"
#include "transport/poller.h"
#include "transport/tcp/tcp_lent.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

namespace onebit::transport {

class TcpEndpoint;

class Flow final : public Source {
 public:
  explicit Flow(TcpEndpoint& owner) : endpoint(owner) {}
  ~Flow() override = default;
  void on_ready() override;

  enum class Phase : std::uint8_t { kConnecting, kHandshake, kOpen };
  struct OutSegment {
    std::array<std::byte, kHeaderBytes> header;
    Request* request;  ///< null for a goodbye
    const std::byte* payload;
    std::uint32_t bytes;
  };
  static constexpr std::size_t kMaxBatch = 16;
  static constexpr std::size_t kStagingBytes = 16 << 10;
  static constexpr std::size_t kLarge = 32 << 10;  ///< a segment worth a read of its own
  static constexpr std::size_t kPeek = 2 << 10;    ///< what a look peeks at, and the segments worth it
  /// So many packets may be unacknowledged for long; the sender's congestion window is hardly ever below.
  static constexpr unsigned kPeeks = 4;
  static constexpr unsigned kVainPeeks = 32;

  /// With `hard`, the kernel resets the connection when it closes, also at the death of the process: a peer
  /// whose window is closed learns of it at once, not after it has made room for what was still to be sent.
  void end_hard(bool hard) noexcept;

  /// The kernel takes no more than about this many bytes that it cannot yet put on the wire: what waits is
  /// warm in the caches, and goes to the flow that is free first. Does not limit what is on the wire.
  void limit_unsent(std::size_t bytes) noexcept;

  /// Payloads of messages from `bytes` on are sent without a copy, where the kernel can; 0: never.
  void lend_from(std::uint64_t bytes) noexcept { wants_reports = lent.enable(fd.get(), bytes); }

  // Sending
  bool has_out() const noexcept { return out_first < out_count; }
  enum class Write : std::uint8_t { kAll, kBlocked, kBroken };
  /// Writes what is in `out`. `written` grows by what the kernel took; segments that are out are reported to
  /// the endpoint.
  Write write(std::uint64_t& written);
  bool at_boundary() const noexcept { return out_written == 0; }

  // Receiving
  std::size_t staged() const noexcept { return end - begin; }
  enum class Read : std::uint8_t { kSome, kNothing, kEnd };
  /// Reads once from the socket: to the payload's destination, then to the staging buffer. With `may_peek`,
  /// small messages stay in the socket, too, for a while.
  Read read(bool may_peek, std::uint64_t& payload_read, std::uint64_t& total_read);
  /// Takes from the socket what was peeked at.
  void take_peeked() noexcept;
  /// For a parked flow whose peer is gone: takes all that the kernel still holds, up to the end.
  void read_rest(std::uint64_t& total_read);

  TcpEndpoint& endpoint;
  SocketAddress source;       ///< of the connecting end; invalid: any
  SocketAddress destination;  ///< likewise
  UniqueSocket fd;
  Phase phase = Phase::kConnecting;
  std::optional<bootstrap::Handshake> handshake;
  unsigned attempts = 0;

  std::array<OutSegment, kMaxBatch> out;
  std::size_t out_first = 0;
  std::size_t out_count = 0;
  std::size_t out_written = 0;  ///< of the first one, header included
  bool goodbye_sent = false;    ///< committed; out when !has_out()
  bool write_broken = false;
  int write_error = 0;
  LentPayloads lent;
  bool maybe_unacknowledged = false;

  std::vector<std::byte> staging;
  bool large_expected = false;  ///< the last segment was large: stage the next header only, nothing twice
  bool small_expected = false;  ///< the last segment was small: peek
  std::size_t peeked = 0;       ///< bytes that have been staged and are still in the socket
  unsigned peeks_kept = 0;      ///< that brought them
  unsigned vain_peeks = 0;      ///< since then
  std::size_t begin = 0;
  std::size_t end = 0;
  Request* receiving = nullptr;
  std::byte* payload_at = nullptr;
  std::size_t payload_left = 0;
  bool parked = false;
  SegmentHeader parked_header;
  bool goodbye_received = false;
  bool goodbye_ahead = false;  ///< read but still behind parked data
  bool at_end = false;         ///< nothing more comes from the socket
  int end_error = 0;           ///< errno of the end, 0 for an orderly one

 private:
  struct Gathered {
    std::array<iovec, 2 * kMaxBatch> pieces;
    std::size_t count = 0;
    std::size_t total = 0;
    bool lends = false;  ///< it is of a payload to be lent
    bool more = false;   ///< such a payload follows

    void add(void* data, std::size_t bytes) {
      pieces[count++] = {data, bytes};
      total += bytes;
    }
  };
  Gathered gather();
  Read peek(std::uint64_t& total_read) noexcept;
  Read nothing_read(ssize_t got) noexcept;
};

}  // namespace onebit::transport
