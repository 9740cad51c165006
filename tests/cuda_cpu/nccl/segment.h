// The shared memory through which the ranks of one communicator talk: a board, and a byte ring for each
// ordered pair of ranks.
//
// Ranks may be threads or processes. The file is named by the communicator's id and unlinked as soon as all
// ranks have it mapped, so a killed rank leaves nothing behind. One mapping a process: the thread sanitizer
// then sees one address. Each rank holds a lock on a byte of the file, which the kernel drops when its
// process dies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace onebit::nccl_stand_in {

constexpr int kMaxRanks = 64;

/// Single producer, single consumer. Positions count bytes since the beginning.
struct Ring {
  std::atomic<std::uint64_t> read;
  std::atomic<std::uint64_t> written;
  char padding[48];
};

struct Board {
  std::atomic<int> attached;
  std::atomic<int> published;  ///< colours of splits, over all splits so far
  std::atomic<int> collected;  ///< ranks that have read them, over all splits so far
  struct Choice {
    std::atomic<int> color;
    std::atomic<int> key;
  } choices[kMaxRanks];
};

class Segment {
 public:
  /// The process's mapping of the segment `name` for `ranks` ranks; null, and errno, when the system has none
  /// to give.
  static std::shared_ptr<Segment> open(const std::string& name, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Board& board() const { return *reinterpret_cast<Board*>(memory_); }
  Ring& ring(int from, int to) const;
  unsigned char* data(Ring& ring) const { return reinterpret_cast<unsigned char*>(&ring + 1); }
  std::size_t ring_bytes() const { return ring_bytes_; }

  /// Counts the rank in, with the lock that says it lives; the file goes with the last. Empty when that
  /// fails.
  UniqueFd attach(int rank);
  bool complete() const { return board().attached.load() == ranks_; }
  /// Whether the rank still holds its lock, asked by another through the descriptor that `attach` gave it.
  static bool alive(const UniqueFd& own, int rank);

 private:
  Segment() = default;
  std::string name_;
  int ranks_ = 0;
  unsigned char* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t ring_bytes_ = 0;
};

}  // namespace onebit::nccl_stand_in
