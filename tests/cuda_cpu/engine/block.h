// One block of CUDA threads: its fibers, the queue of those that can run, and where the others wait.
//
// Invariant: a fiber is running, in the queue, waiting in one warp operation or in the barrier, or finished.
// When nothing runs and the queue is empty while fibers wait, the block can never end: that is reported and
// ends the program. Threads: a Block belongs to the thread that made it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>

#include "cuda_cpu/device/threads.h"
#include "cuda_cpu/engine/grid.h"
#include "cuda_cpu/engine/stack.h"

namespace onebit::cuda_cpu {

constexpr unsigned kWarpLanes = 32;

class Block;

struct Fiber {
  enum class State : std::uint8_t { kReady, kInWarpOperation, kInBarrier, kFinished };

  Block* block = nullptr;
  unsigned index = 0;  ///< of the thread in its block
  uint3 thread_index{};
  State state = State::kFinished;
  // The warp operation it waits in, and what came out.
  WarpOperation operation{};
  std::uint32_t mask = 0;
  std::uint64_t value = 0;
  std::uint32_t argument = 0;
  std::uint32_t width = kWarpLanes;
  std::uint64_t result = 0;
  // Its context.
  void* stack_pointer = nullptr;
  void* asan_stack = nullptr;
  void* tsan_fiber = nullptr;

  unsigned lane() const { return index % kWarpLanes; }
  unsigned warp() const { return index / kWarpLanes; }
  std::uint32_t lane_bit() const { return 1U << lane(); }
};

/// Lanes of one warp that meet in an operation.
struct Meeting {
  std::uint32_t mask;
  std::uint32_t arrived;
  WarpOperation operation;
  char* edge;  ///< the address of this meeting's order for the thread sanitizer
};

struct Warp {
  std::uint32_t live = 0;                    ///< lanes that have not returned
  std::array<Meeting, kWarpLanes> meetings;  ///< of disjoint masks; the first `meeting_count`
  std::size_t meeting_count = 0;
  std::array<char, 64>
      edges{};  ///< taken in turn, so that a meeting shares none with those that its lanes come from
  unsigned next_edge = 0;
};

class Block {
 public:
  explicit Block(const EngineOptions& options);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Before run: the grid whose blocks follow.
  void enter(const Grid& grid);
  void run(uint3 index);

  // Called by the running fiber.
  std::uint64_t warp_operation(Fiber& self, WarpOperation operation, std::uint32_t mask, std::uint64_t value,
                               std::uint32_t argument, std::uint32_t width);
  int barrier(Fiber& self, Barrier kind, int predicate);
  void* dynamic_shared() const { return shared_.get(); }
  /// What a fiber does from its first switch on: one thread of a block after another.
  [[noreturn]] void fiber_main(Fiber& self);

 private:
  void make_fiber(unsigned index);
  void* tsan_fiber_for(unsigned index);
  /// Leaves `from` for `to`; null is run()'s own context.
  void switch_to(Fiber* from, Fiber* to);
  void push(unsigned index);
  Fiber* pop();
  void give_way(Fiber& self);
  /// After `self` has completed what others wait for: in random order another may go first.
  void after_completing(Fiber& self);
  void finish_thread(Fiber& self);

  bool complete(unsigned warp, std::size_t meeting) const;
  void finish_meeting(unsigned warp, std::size_t meeting, const Fiber* self);
  void finish_barrier(const Fiber* self);
  /// Says `why` and who waits where, and ends the program.
  [[noreturn]] void give_up(const char* why) const;

  const EngineOptions options_;
  Stacks stacks_;
  std::unique_ptr<Fiber[]> fibers_;
  unsigned made_ = 0;  ///< fibers that have a context
  std::array<Warp, kMaxThreads / kWarpLanes> warps_;
  std::mt19937 random_;

  // The grid and the block that run.
  const Grid* grid_ = nullptr;
  unsigned threads_ = 0;
  uint3 index_{};
  std::unique_ptr<void, void (*)(void*)> shared_;
  unsigned live_ = 0;

  // The queue of ready fibers, a ring.
  std::array<std::uint16_t, kMaxThreads> queue_;
  unsigned queue_head_ = 0;
  unsigned queue_size_ = 0;

  // The barrier: what its threads have brought so far, and the results of the last one that completed.
  unsigned waiting_in_barrier_ = 0;
  Barrier barrier_kind_ = Barrier::kPlain;
  int brought_ = 0;  ///< predicates that were not 0
  std::array<int, 4> barrier_results_{};
  std::array<char, 2> barrier_edges_{};
  unsigned barriers_ = 0;

  // The context of run(), and its order with the fibers.
  void* stack_pointer_ = nullptr;
  void* asan_stack_ = nullptr;
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  char start_edge_ = 0;
  char end_edge_ = 0;
};

/// The running fiber, null outside of kernels.
Fiber* current_fiber();
const char* name_of(WarpOperation operation);

}  // namespace onebit::cuda_cpu
