#include "cuda_cpu/engine/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_cpu/engine/sanitizers.h"

extern "C" {
__thread uint3 threadIdx = {0, 0, 0};
__thread uint3 blockIdx = {0, 0, 0};
__thread dim3 blockDim;
__thread dim3 gridDim;
}

namespace onebit::cuda_cpu {
namespace {

constexpr std::size_t kStackBytes = 36 * 1024;
constexpr std::size_t kSanitizedStackBytes = 132 * 1024;
constexpr std::size_t kSharedAlignment = 128;
constexpr int kPoison = 0xFF;  // a NaN in every floating-point type

__thread Fiber* running __attribute__((tls_model("initial-exec"))) = nullptr;

/// The end of a switch into a fiber that has not run before.
void fiber_entry() {
  Fiber& self = *current_fiber();
  self.block->fiber_main(self);
}

}  // namespace

// Not inlined: a fiber may not keep the address of a thread-local over a switch.
__attribute__((noinline)) Fiber* current_fiber() {
  return running;
}

Block::Block(const EngineOptions& options)
    : options_(options),
      stacks_(kMaxThreads, under_any_sanitizer() ? kSanitizedStackBytes : kStackBytes),
      fibers_(new Fiber[kMaxThreads]),
      random_(options.seed),
      shared_(nullptr, &std::free) {}

Block::~Block() {
  if (!under_thread_sanitizer()) return;
  for (unsigned i = 0; i < made_; ++i) {
    if (i % kWarpLanes == 0 || fibers_[i].tsan_fiber != fibers_[i - 1].tsan_fiber) {
      __tsan_destroy_fiber(fibers_[i].tsan_fiber);
    }
  }
}

void Block::make_fiber(unsigned index) {
  Fiber& fiber = fibers_[index];
  fiber.block = this;
  fiber.index = index;
  fiber.stack_pointer = stacks_.prepare(index, &fiber_entry);
  fiber.tsan_fiber = tsan_fiber_for(index);
}

// Fibers are never shared between streams: the history of a shared one would order thread i of two kernels,
// and hide the races that matter most.
void* Block::tsan_fiber_for(unsigned index) {
  if (!under_thread_sanitizer()) return nullptr;
  if (options_.tsan_fiber_per_warp && index % kWarpLanes != 0)
    return fibers_[index - index % kWarpLanes].tsan_fiber;
  void* const fiber = __tsan_create_fiber(0);
  char name[32];
  if (options_.tsan_fiber_per_warp) {
    std::snprintf(name, sizeof name, "CUDA warp %u", index / kWarpLanes);
  } else {
    std::snprintf(name, sizeof name, "CUDA thread %u", index);
  }
  if (__tsan_set_fiber_name != nullptr) __tsan_set_fiber_name(fiber, name);
  return fiber;
}

void Block::switch_to(Fiber* from, Fiber* to) {
  void** const asan_save = from == nullptr ? &asan_stack_ : &from->asan_stack;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(asan_save, to == nullptr ? stack_bottom_ : stacks_.bottom(to->index),
                                   to == nullptr ? stack_bytes_ : stacks_.bytes());
  }
  void* const tsan_from = from == nullptr ? tsan_fiber_ : from->tsan_fiber;
  void* const tsan_to = to == nullptr ? tsan_fiber_ : to->tsan_fiber;
  constexpr unsigned kNoOrder = 1;  // threads of a block are ordered by barriers alone
  if (tsan_from != tsan_to) __tsan_switch_to_fiber(tsan_to, kNoOrder);
  running = to;
  if (to != nullptr) threadIdx = to->thread_index;
  onebit_cuda_cpu_switch(from == nullptr ? &stack_pointer_ : &from->stack_pointer,
                         to == nullptr ? stack_pointer_ : to->stack_pointer);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    const void* bottom;
    std::size_t bytes;
    __sanitizer_finish_switch_fiber(*asan_save, &bottom, &bytes);
  }
}

void Block::push(unsigned index) {
  queue_[(queue_head_ + queue_size_++) % kMaxThreads] = static_cast<std::uint16_t>(index);
}

Fiber* Block::pop() {
  if (queue_size_ == 0) return nullptr;
  std::uint16_t& first = queue_[queue_head_ % kMaxThreads];
  if (options_.order == Order::kRandom) {
    std::swap(first, queue_[(queue_head_ + random_() % queue_size_) % kMaxThreads]);
  }
  ++queue_head_;
  --queue_size_;
  return &fibers_[first];
}

void Block::give_way(Fiber& self) {
  Fiber* const next = pop();
  if (next != &self) switch_to(&self, next);
}

void Block::after_completing(Fiber& self) {
  if (options_.order != Order::kRandom) return;
  push(self.index);
  give_way(self);
}

void Block::fiber_main(Fiber& self) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    const void* bottom;
    std::size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    // The first fiber of all comes from run()'s own stack.
    if (stack_bottom_ == nullptr) {
      stack_bottom_ = bottom;
      stack_bytes_ = bytes;
    }
  }
  for (;;) {
    acquire(&start_edge_);
    grid_->signature->call(grid_->kernel, grid_->arguments);
    release(&end_edge_);
    finish_thread(self);
    switch_to(&self, pop());
  }
}

void Block::finish_thread(Fiber& self) {
  self.state = Fiber::State::kFinished;
  --live_;
  Warp& warp = warps_[self.warp()];
  warp.live &= ~self.lane_bit();
  // Those who waited for this lane alone go on.
  for (std::size_t i = warp.meeting_count; i-- > 0;) {
    if (complete(self.warp(), i)) finish_meeting(self.warp(), i, nullptr);
  }
  if (live_ > 0 && waiting_in_barrier_ == live_) finish_barrier(nullptr);
}

void Block::enter(const Grid& grid) {
  grid_ = &grid;
  threads_ = grid.threads.x * grid.threads.y * grid.threads.z;
  for (; made_ < threads_; ++made_) make_fiber(made_);
  for (unsigned i = 0; i < threads_; ++i) {
    fibers_[i].thread_index = {i % grid.threads.x, i / grid.threads.x % grid.threads.y,
                               i / (grid.threads.x * grid.threads.y)};
  }
  shared_.reset();
  if (grid.shared_bytes > 0) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kSharedAlignment, grid.shared_bytes) != 0)
      give_up("no dynamic shared memory");
    shared_.reset(memory);
  }
  if (__tsan_get_current_fiber != nullptr) tsan_fiber_ = __tsan_get_current_fiber();
}

void Block::run(uint3 index) {
  index_ = index;
  blockIdx = index;
  blockDim = grid_->threads;
  gridDim = grid_->blocks;
  if (shared_ != nullptr) std::memset(shared_.get(), kPoison, grid_->shared_bytes);
  live_ = threads_;
  waiting_in_barrier_ = 0;
  brought_ = 0;
  for (unsigned warp = 0; warp * kWarpLanes < threads_; ++warp) {
    const unsigned lanes = std::min(kWarpLanes, threads_ - warp * kWarpLanes);
    warps_[warp].live = lanes == kWarpLanes ? ~0U : (1U << lanes) - 1;
    warps_[warp].meeting_count = 0;
  }
  for (unsigned i = 0; i < threads_; ++i) {
    fibers_[i].state = Fiber::State::kReady;
    push(options_.order == Order::kReverse ? threads_ - 1 - i : i);
  }
  release(&start_edge_);
  while (Fiber* const next = pop()) switch_to(nullptr, next);
  if (live_ > 0) give_up("deadlock");
  acquire(&end_edge_);
}

int Block::barrier(Fiber& self, Barrier kind, int predicate) {
  self.state = Fiber::State::kInBarrier;
  char* const edge = &barrier_edges_[barriers_ % 2];
  release(edge);
  if (waiting_in_barrier_ == 0) barrier_kind_ = kind;
  ++waiting_in_barrier_;
  if (barrier_kind_ != kind) give_up("different variants of __syncthreads met");
  brought_ += predicate != 0 ? 1 : 0;
  if (waiting_in_barrier_ == live_) {
    finish_barrier(&self);
    after_completing(self);
  } else {
    give_way(self);
  }
  acquire(edge);
  return barrier_results_[static_cast<std::size_t>(kind)];
}

void Block::finish_barrier(const Fiber* self) {
  const int all = static_cast<int>(waiting_in_barrier_);
  barrier_results_ = {0, brought_, brought_ == all ? 1 : 0, brought_ > 0 ? 1 : 0};
  brought_ = 0;
  waiting_in_barrier_ = 0;
  ++barriers_;
  for (unsigned i = 0; i < threads_; ++i) {
    if (fibers_[i].state != Fiber::State::kInBarrier) continue;
    fibers_[i].state = Fiber::State::kReady;
    if (&fibers_[i] != self) push(i);
  }
}

void Block::give_up(const char* why) const {
  std::fprintf(stderr, "cuda_cpu: %s in block (%u,%u,%u) of kernel %s\n", why, index_.x, index_.y, index_.z,
               grid_->name);
  constexpr unsigned kShown = 64;
  unsigned shown = 0;
  for (unsigned i = 0; i < threads_ && shown < kShown; ++i) {
    const Fiber& fiber = fibers_[i];
    if (fiber.state == Fiber::State::kInWarpOperation) {
      std::fprintf(stderr, "  thread %u waits in %s of mask %08x; live lanes are %08x\n", i,
                   name_of(fiber.operation), fiber.mask, warps_[fiber.warp()].live);
      ++shown;
    } else if (fiber.state == Fiber::State::kInBarrier) {
      std::fprintf(stderr, "  thread %u waits in __syncthreads, where %u of %u have come\n", i,
                   waiting_in_barrier_, live_);
      ++shown;
    }
  }
  std::abort();
}

}  // namespace onebit::cuda_cpu

extern "C" int onebit_cuda_cpu_barrier(onebit::cuda_cpu::Barrier kind, int predicate) {
  onebit::cuda_cpu::Fiber& self = *onebit::cuda_cpu::current_fiber();
  return self.block->barrier(self, kind, predicate);
}
extern "C" void* onebit_cuda_cpu_dynamic_shared() {
  return onebit::cuda_cpu::current_fiber()->block->dynamic_shared();
}
