#include "cuda_cpu/nccl/exchange.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cstdio>
#include <cstring>

#include "cuda_cpu/engine/sanitizers.h"

namespace onebit::nccl_stand_in {
namespace {

/// What can be moved now, up to the end of the ring's memory; 0 when nothing can.
std::size_t move_some(const Communicator& communicator, Transfer& transfer) {
  Segment& segment = communicator.segment();
  Ring& ring = transfer.sends ? segment.ring(communicator.rank(), transfer.peer)
                              : segment.ring(transfer.peer, communicator.rank());
  const std::uint64_t read = ring.read.load(std::memory_order_acquire);
  const std::uint64_t written = ring.written.load(std::memory_order_acquire);
  const std::size_t filled = written - read;
  const std::size_t room = transfer.sends ? segment.ring_bytes() - filled : filled;
  const std::size_t at = (transfer.sends ? written : read) % segment.ring_bytes();
  const std::size_t bytes = std::min({transfer.bytes - transfer.done, room, segment.ring_bytes() - at});
  if (bytes == 0) return 0;
  unsigned char* const place = segment.data(ring) + at;
  if (transfer.sends) {
    cuda_cpu::acquire(&ring.read);
    std::memcpy(place, transfer.data + transfer.done, bytes);
    cuda_cpu::release(&ring.written);
    ring.written.store(written + bytes, std::memory_order_release);
  } else {
    cuda_cpu::acquire(&ring.written);
    std::memcpy(transfer.data + transfer.done, place, bytes);
    cuda_cpu::release(&ring.read);
    ring.read.store(read + bytes, std::memory_order_release);
  }
  transfer.done += bytes;
  return bytes;
}

void say(const Communicator& communicator, const Transfer& transfer, const char* why) {
  std::fprintf(stderr, "stand-in for NCCL: rank %d of %s: %s rank %d, %zu of %zu bytes: %s\n",
               communicator.rank(), communicator.name().c_str(), transfer.sends ? "send to" : "receive from",
               transfer.peer, transfer.done, transfer.bytes, why);
}

}  // namespace

bool exchange(Communicator& communicator, std::vector<Transfer>& transfers) {
  constexpr unsigned kYields = 20;
  constexpr unsigned kChecked = 2048;  // idle rounds between two looks at the peers
  constexpr useconds_t kPause = 20;
  Deadline deadline = Deadline::after(patience());
  std::size_t open = transfers.size();
  unsigned idle = 0;
  while (open > 0) {
    if (communicator.broken()) return false;
    // Of each pair and direction, the first that is not done.
    std::bitset<kMaxRanks> busy[2];
    bool moved = false;
    open = 0;
    for (Transfer& transfer : transfers) {
      if (transfer.done == transfer.bytes) continue;
      ++open;
      auto&& taken = busy[transfer.sends ? 1 : 0][static_cast<std::size_t>(transfer.peer)];
      if (taken) continue;
      taken = true;
      if (move_some(communicator, transfer) > 0) moved = true;
    }
    if (open == 0 || moved) {
      if (moved) deadline = Deadline::after(patience());
      idle = 0;
      continue;
    }
    ++idle % kYields == 0 ? ::usleep(kPause) : ::sched_yield();
    if (idle % kChecked != 0) continue;
    const bool late = deadline.passed();
    for (Transfer& transfer : transfers) {
      if (transfer.done == transfer.bytes) continue;
      const bool gone = !communicator.alive(transfer.peer);
      if (!gone && !late) continue;
      // It may have put its last bytes there before it went.
      if (move_some(communicator, transfer) > 0) break;
      say(communicator, transfer, gone ? "that rank is gone" : "nothing moves (CUDA_CPU_NCCL_TIMEOUT)");
      communicator.break_off(ncclRemoteError);
      return false;
    }
  }
  return true;
}

}  // namespace onebit::nccl_stand_in
