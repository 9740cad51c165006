#include "transport/tcp/tcp_flow.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "transport/tcp/tcp_endpoint.h"

namespace onebit::transport {
namespace {

/// The most that one read asks for: keeps a fast peer from holding the thread.
constexpr std::size_t kMaxRead = 1 << 20;
/// Up to this size the kernel takes one piece sooner than it takes several.
constexpr std::size_t kCopied = 512;

ssize_t put_on_socket(int fd, std::span<iovec> pieces, std::size_t total, int flags) noexcept {
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  if (total <= kCopied && (flags & MSG_ZEROCOPY) == 0) {
    std::array<std::byte, kCopied> whole;
    std::byte* at = whole.data();
    for (const iovec& piece : pieces) {
      std::memcpy(at, piece.iov_base, piece.iov_len);
      at += piece.iov_len;
    }
    return ::send(fd, whole.data(), total, flags);
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return ::sendmsg(fd, &message, flags);
}

}  // namespace

void Flow::on_ready() {
  endpoint.on_flow_ready(*this);
}

void Flow::end_hard(bool hard) noexcept {
  const linger how{hard ? 1 : 0, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &how, sizeof how);
}

void Flow::limit_unsent(std::size_t bytes) noexcept {
  const int limit = static_cast<int>(bytes);
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit);
}

/// What goes into one call: a header that stands before a payload to be lent, some of such a payload, or as
/// many whole segments as there are before the next one of those.
Flow::Gathered Flow::gather() {
  Gathered gathered;
  std::size_t skip = out_written;
  for (std::size_t i = out_first; i < out_count; ++i) {
    OutSegment& segment = out[i];
    const bool lend =
        segment.request != nullptr && segment.bytes > 0 && lent.wants(segment.request->capacity);
    if (skip < kHeaderBytes) {
      gathered.add(segment.header.data() + skip, kHeaderBytes - skip);
      skip = kHeaderBytes;
      gathered.more = lend;
      if (lend) break;
    }
    const std::size_t payload_skip = skip - kHeaderBytes;
    if (segment.bytes > payload_skip) {
      gathered.lends = lend;
      // sendmsg does not write through the pointer.
      gathered.add(const_cast<std::byte*>(segment.payload) + payload_skip, segment.bytes - payload_skip);
      if (lend) break;
    }
    skip = 0;
  }
  return gathered;
}

Flow::Write Flow::write(std::uint64_t& written) {
  bool may_lend = true;
  while (has_out()) {
    Gathered gathered = gather();
    const bool lends = gathered.lends && may_lend;
    const int flags = (lends ? MSG_ZEROCOPY : 0) | (gathered.more ? MSG_MORE : 0);
    const ssize_t put =
        put_on_socket(fd.get(), {gathered.pieces.data(), gathered.count}, gathered.total, flags);
    if (put < 0) {
      if (errno == EINTR) continue;
      if (lends &&
          errno == ENOBUFS) {  // no more memory may be lent now (RLIMIT_MEMLOCK, net.core.optmem_max)
        may_lend = false;
        continue;
      }
      writable = false;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Write::kBlocked;
      write_error = errno;
      write_broken = true;
      return Write::kBroken;
    }
    maybe_unacknowledged = true;
    written += static_cast<std::uint64_t>(put);
    if (lends) lent.add_call({out[out_first].request, out[out_first].bytes});
    std::size_t left = static_cast<std::size_t>(put);
    while (left > 0) {
      OutSegment& segment = out[out_first];
      const std::size_t rest = kHeaderBytes + segment.bytes - out_written;
      if (left < rest) {
        out_written += left;
        break;
      }
      left -= rest;
      out_written = 0;
      ++out_first;
      if (lent.close() && segment.request != nullptr) endpoint.on_sent(*segment.request, segment.bytes);
    }
    // The socket took less than was offered: it is full, and an edge will tell when it is not.
    if (static_cast<std::size_t>(put) < gathered.total) {
      writable = false;
      return Write::kBlocked;
    }
  }
  out_first = out_count = 0;
  return Write::kAll;
}

Flow::Read Flow::read(bool may_peek, std::uint64_t& payload_read, std::uint64_t& total_read) {
  if (staging.empty()) staging.resize(kStagingBytes);
  if (may_peek && small_expected && !hung_up && staged() == 0 && payload_left == 0 && peeked < kPeek &&
      peeks_kept < kPeeks) {
    return peek(total_read);
  }
  take_peeked();
  if (at_end) return Read::kEnd;
  if (begin == end) {
    begin = end = 0;
  } else if (begin > 0) {  // the start of a header
    std::memmove(staging.data(), staging.data() + begin, end - begin);
    end -= begin;
    begin = 0;
  }
  const std::size_t direct = std::min(payload_left, kMaxRead);
  std::array<iovec, 2> pieces;
  std::size_t count = 0;
  if (direct > 0) pieces[count++] = {payload_at, direct};
  std::size_t wanted = direct;
  if (direct == payload_left) {
    const std::size_t room = large_expected && end < kHeaderBytes ? kHeaderBytes - end : staging.size() - end;
    pieces[count++] = {staging.data() + end, room};
    wanted += room;
  }
  ssize_t got;
  do {
    got = ::readv(fd.get(), pieces.data(), static_cast<int>(count));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return nothing_read(got);
  // Less than asked for: the socket is drained, and an edge will tell of more. An end that was already told
  // has no further edge: then the next read must find it.
  if (static_cast<std::size_t>(got) < wanted && !hung_up) readable = false;
  const std::size_t to_payload = std::min(static_cast<std::size_t>(got), direct);
  payload_at += to_payload;
  payload_left -= to_payload;
  payload_read += to_payload;
  total_read += static_cast<std::uint64_t>(got);
  end += static_cast<std::size_t>(got) - to_payload;
  return Read::kSome;
}

Flow::Read Flow::nothing_read(ssize_t got) noexcept {
  readable = false;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Read::kNothing;
  at_end = true;
  end_error = got < 0 ? errno : 0;
  return Read::kEnd;
}

Flow::Read Flow::peek(std::uint64_t& total_read) noexcept {
  if (peeked == 0) begin = end = 0;
  const std::size_t wanted = peeked + kPeek;
  ssize_t seen;
  do {
    seen = ::recv(fd.get(), staging.data() + (end - peeked), wanted, MSG_PEEK | MSG_DONTWAIT);
  } while (seen < 0 && errno == EINTR);
  if (seen <= 0) return nothing_read(seen);
  if (static_cast<std::size_t>(seen) < wanted) readable = false;
  const std::size_t more = static_cast<std::size_t>(seen) - peeked;
  if (more == 0) {
    if (++vain_peeks >= kVainPeeks) take_peeked();
    return Read::kNothing;
  }
  peeked += more;
  end += more;
  total_read += more;
  ++peeks_kept;
  vain_peeks = 0;
  return Read::kSome;
}

void Flow::take_peeked() noexcept {
  peeks_kept = vain_peeks = 0;
  while (peeked > 0) {
    const ssize_t taken = ::recv(fd.get(), nullptr, peeked, MSG_TRUNC | MSG_DONTWAIT);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) {  // not while the kernel has them
      at_end = true;
      end_error = taken < 0 ? errno : 0;
      readable = false;
      peeked = 0;
      return;
    }
    peeked -= static_cast<std::size_t>(taken);
  }
}

void Flow::read_rest(std::uint64_t& total_read) {
  constexpr std::size_t kStep = 256 << 10;
  take_peeked();
  for (;;) {
    if (staging.size() - end < kStep) staging.resize(end + kStep);
    const ssize_t got = ::recv(fd.get(), staging.data() + end, staging.size() - end, MSG_DONTWAIT);
    if (got > 0) {
      end += static_cast<std::size_t>(got);
      total_read += static_cast<std::uint64_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    at_end = true;
    end_error = got < 0 ? errno : 0;
    readable = false;
    return;
  }
}

}  // namespace onebit::transport
