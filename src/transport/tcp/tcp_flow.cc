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

ssize_t put_on_socket(int fd, std::span<iovec> pieces, std::size_t total) noexcept {
  constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  if (total <= kCopied) {
    std::array<std::byte, kCopied> whole;
    std::byte* at = whole.data();
    for (const iovec& piece : pieces) {
      std::memcpy(at, piece.iov_base, piece.iov_len);
      at += piece.iov_len;
    }
    return ::send(fd, whole.data(), total, kFlags);
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return ::sendmsg(fd, &message, kFlags);
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

Flow::Write Flow::write(std::uint64_t& written) {
  while (has_out()) {
    std::array<iovec, 2 * kMaxBatch> pieces;
    std::size_t count = 0;
    std::size_t total = 0;
    std::size_t skip = out_written;
    for (std::size_t i = out_first; i < out_count; ++i) {
      OutSegment& segment = out[i];
      if (skip < kHeaderBytes) {
        pieces[count++] = {segment.header.data() + skip, kHeaderBytes - skip};
        total += kHeaderBytes - skip;
        skip = kHeaderBytes;
      }
      const std::size_t payload_skip = skip - kHeaderBytes;
      if (segment.bytes > payload_skip) {
        // sendmsg does not write through the pointer.
        pieces[count++] = {const_cast<std::byte*>(segment.payload) + payload_skip,
                           segment.bytes - payload_skip};
        total += segment.bytes - payload_skip;
      }
      skip = 0;
    }
    const ssize_t put = put_on_socket(fd.get(), {pieces.data(), count}, total);
    if (put < 0) {
      if (errno == EINTR) continue;
      writable = false;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Write::kBlocked;
      write_error = errno;
      write_broken = true;
      return Write::kBroken;
    }
    maybe_unacknowledged = true;
    written += static_cast<std::uint64_t>(put);
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
      endpoint.on_segment_written(segment);
    }
    // The socket took less than was offered: it is full, and an edge will tell when it is not.
    if (static_cast<std::size_t>(put) < total) {
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
