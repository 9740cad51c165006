// The payloads of one flow that the kernel sends from where they lie (MSG_ZEROCOPY), and still may read.
//
// A payload is lent by one or more calls, which the kernel counts from 0 and reports by ranges in the
// socket's error queue when it needs their memory no more. Invariant: calls of one payload follow each other,
// as payloads are written one after the other; ranges never overlap, but may come in any order. Where the
// kernel says again and again that it has copied after all (loopback, virtual devices, what the driver cannot
// gather), nothing is lent any more. Threads: those of the context.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/transport.h"

namespace onebit::transport {

class LentPayloads {
 public:
  struct Payload {
    Request* request = nullptr;
    std::uint32_t bytes = 0;
  };

  /// Payloads of messages from `from` bytes on are to be lent. False, and none are, where the kernel cannot.
  bool enable(int fd, std::uint64_t from) noexcept;
  bool wants(std::uint64_t message_bytes) const noexcept { return from_ != 0 && message_bytes >= from_; }
  bool empty() const noexcept { return entries_.empty(); }

  /// A call has lent some of a payload: the one under way, or a new one.
  void add_call(const Payload& payload);
  /// The payload under way, or one that was not lent at all, is with the kernel as a whole. False when it is
  /// still lent: take_returned will tell.
  bool close() noexcept;
  /// Reads what the kernel reports: payloads that are lent no more.
  void take_returned(int fd, std::vector<Payload>& returned);
  /// Forgets all, giving each to `payloads`.
  void drop(std::vector<Payload>& payloads);

 private:
  struct Entry {
    Payload payload;
    std::uint32_t first_call = 0;
    std::uint32_t calls = 0;
    std::uint32_t returned = 0;
    bool open = false;
  };
  void take_range(std::uint32_t first, std::uint32_t last, std::vector<Payload>& returned);

  std::uint64_t from_ = 0;
  std::uint32_t next_call_ = 0;
  std::uint32_t copied_ = 0;  ///< calls in a row that the kernel has copied
  std::deque<Entry> entries_;
};

}  // namespace onebit::transport
