// Framed messages: sending what goes, reading what has come.
#include "bootstrap/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "bootstrap/wire.h"

namespace onebit::bootstrap {
namespace {

constexpr std::size_t kStep = std::size_t{64} * 1024;  // memory grows by at most this ahead of the bytes

Status gone(int error) {
  return Status(Code::kRemoteError, Status::system(error, "its connection broke").message());
}

}  // namespace

void FrameStream::queue(FrameType type, std::shared_ptr<const std::vector<std::byte>> payload) {
  Writer head;
  head.u32(static_cast<std::uint32_t>(type));
  head.u64(payload->size());
  Outgoing next{{}, std::move(payload)};
  std::copy(head.data().begin(), head.data().end(), next.head.begin());
  out_.push_back(std::move(next));
}

Status FrameStream::flush() {
  while (!out_.empty()) {
    const Outgoing& first = out_.front();
    const bool in_head = sent_ < first.head.size();
    const std::byte* from =
        in_head ? first.head.data() + sent_ : first.payload->data() + (sent_ - first.head.size());
    const std::size_t left =
        (in_head ? first.head.size() : first.head.size() + first.payload->size()) - sent_;
    const int more = in_head && !first.payload->empty() ? MSG_MORE : 0;
    const ssize_t put = left == 0 ? 0 : ::send(fd_.get(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (put < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return gone(errno);
    }
    sent_ += static_cast<std::size_t>(put);
    if (sent_ == first.head.size() + first.payload->size()) {
      out_.pop_front();
      sent_ = 0;
    }
  }
  return Status();
}

Result<std::optional<Frame>> FrameStream::read() {
  for (;;) {
    const bool in_head = head_have_ < head_.size();
    std::byte* into = head_.data() + head_have_;
    std::size_t want = head_.size() - head_have_;
    const std::size_t have = payload_.size();
    if (!in_head) {
      want = static_cast<std::size_t>(std::min<std::uint64_t>(kStep, payload_need_ - have));
      payload_.resize(have + want);
      into = payload_.data() + have;
    }
    ssize_t got = 0;
    do {
      got = want == 0 ? 0 : ::recv(fd_.get(), into, want, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    const int error = got < 0 ? errno : 0;
    if (!in_head) payload_.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (error == EAGAIN || error == EWOULDBLOCK) return std::optional<Frame>();
    if (error != 0) return gone(error);
    if (got == 0 && want > 0) return Status(Code::kRemoteError, "it has closed its connection");

    if (in_head) {
      head_have_ += static_cast<std::size_t>(got);
      if (head_have_ < head_.size()) continue;
      Reader reader(head_);
      const std::uint32_t type = reader.u32();
      payload_need_ = reader.u64();
      if (type < static_cast<std::uint32_t>(FrameType::kRoll) ||
          type > static_cast<std::uint32_t>(FrameType::kAll) || payload_need_ > limit_) {
        return Status(Code::kDataError, "it sent something that is no message of the rendezvous");
      }
    }
    if (payload_.size() < payload_need_) continue;
    Frame frame{static_cast<FrameType>(std::to_integer<std::uint8_t>(head_[0])), std::move(payload_)};
    payload_.clear();
    head_have_ = 0;
    return std::optional<Frame>(std::move(frame));
  }
}

Result<int> wait_ready(std::vector<pollfd>& entries, Deadline deadline) {
  for (;;) {
    const int ready = ::poll(entries.data(), entries.size(), deadline.poll_timeout());
    if (ready > 0 || (ready == 0 && deadline.passed())) return ready;
    if (ready < 0 && errno != EINTR) return Status::system(errno, "poll");
  }
}

Result<bool> wait_ready(int fd, short events, Deadline deadline) {
  std::vector<pollfd> entries{{fd, events, 0}};
  ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(entries, deadline));
  return ready > 0;
}

}  // namespace onebit::bootstrap
