// Framed messages over a connected, non-blocking socket, and waiting for sockets.
//
// A frame is a head of 12 bytes (type, three zeros, length of 8 bytes) and that many bytes. A length above
// the stream's limit is an error; below it, memory grows only as bytes come. Nothing beyond the frame at hand
// is read. Threads: one at a time per stream. Never raises SIGPIPE.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "base/unique_socket.h"

namespace onebit::bootstrap {

enum class FrameType : std::uint8_t {
  kRoll = 1,     ///< rank 0 to all: everyone has come
  kFailure = 2,  ///< any way: the sender has failed, and why
  kData = 3,     ///< a rank's part of an all_gather
  kAll = 4,      ///< rank 0 to all: the parts of all ranks
};

struct Frame {
  FrameType type;
  std::vector<std::byte> payload;
};

class FrameStream {
 public:
  FrameStream() = default;
  FrameStream(UniqueSocket fd, std::size_t limit) : fd_(std::move(fd)), limit_(limit) {}

  int fd() const { return fd_.get(); }
  /// The payload may be shared by many streams.
  void queue(FrameType type, std::shared_ptr<const std::vector<std::byte>> payload);
  bool wants_write() const { return !out_.empty(); }
  /// Sends what goes without blocking. kRemoteError when the other end is gone.
  Status flush();
  /// The next whole frame; nothing when it has not all come. kRemoteError when the other end has closed or is
  /// gone, kDataError for what is no frame.
  Result<std::optional<Frame>> read();

 private:
  struct Outgoing {
    std::array<std::byte, 12> head;
    std::shared_ptr<const std::vector<std::byte>> payload;
  };
  UniqueSocket fd_;
  std::size_t limit_ = 0;
  std::deque<Outgoing> out_;
  std::size_t sent_ = 0;  // of the first, head included
  std::array<std::byte, 12> head_{};
  std::size_t head_have_ = 0;
  std::vector<std::byte> payload_;
  std::uint64_t payload_need_ = 0;
};

/// poll(2) until something is ready or `deadline` has passed, through signals. The number of ready entries.
Result<int> wait_ready(std::vector<pollfd>& entries, Deadline deadline);
/// The same for one socket: false when the deadline has passed.
Result<bool> wait_ready(int fd, short events, Deadline deadline);

}  // namespace onebit::bootstrap
