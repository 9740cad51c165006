// Stacks of fibers and the switch between them, for x86-64 (System V ABI).
//
// A switch saves the registers that a called function must keep, and the stack pointer; floating-point modes
// are shared. Threads: a fiber must be resumed by the thread that made it, as its code may have kept
// addresses of thread-locals.
#pragma once

#include <cstddef>

extern "C" {
/// Leaves the running context, whose stack pointer goes to `*save`, for the one that was left with `resume`.
void onebit_cuda_cpu_switch(void** save, void* resume);
}

namespace onebit::cuda_cpu {

/// `count` stacks of one size, each above an inaccessible page, so that an overflow ends the program where it
/// happens.
class Stacks {
 public:
  Stacks(std::size_t count, std::size_t bytes);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  /// Makes stack `index` ready for a context that begins in `entry`; the pointer to resume it with.
  void* prepare(std::size_t index, void (*entry)());
  void* bottom(std::size_t index) const { return memory_ + index * stride_ + kGuard; }
  std::size_t bytes() const { return stride_ - kGuard; }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::size_t count_;
  std::size_t stride_;
  unsigned char* memory_;
};

}  // namespace onebit::cuda_cpu
