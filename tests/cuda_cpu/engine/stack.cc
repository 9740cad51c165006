#include "cuda_cpu/engine/stack.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

asm(R"(
.text
.globl onebit_cuda_cpu_switch
.type onebit_cuda_cpu_switch,@function
onebit_cuda_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size onebit_cuda_cpu_switch,.-onebit_cuda_cpu_switch
)");

namespace onebit::cuda_cpu {
namespace {

constexpr std::size_t kSavedRegisters = 6;
constexpr std::size_t kCacheLine = 64;
// Stacks that lie whole pages apart would use the same few lines of the cache, so they begin at different
// lines.
constexpr std::size_t kColours = 32;

}  // namespace

Stacks::Stacks(std::size_t count, std::size_t bytes) : count_(count), stride_(kGuard + bytes) {
  void* const memory = ::mmap(nullptr, count_ * stride_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "cuda_cpu: no memory for %zu stacks of %zu bytes\n", count_, bytes);
    std::abort();
  }
  memory_ = static_cast<unsigned char*>(memory);
}

Stacks::~Stacks() {
  ::munmap(memory_, count_ * stride_);
}

void* Stacks::prepare(std::size_t index, void (*entry)()) {
  unsigned char* const guard = memory_ + index * stride_;
  if (::mprotect(guard, kGuard, PROT_NONE) != 0) {
    std::fprintf(stderr, "cuda_cpu: no guard page under a stack; raise vm.max_map_count\n");
    std::abort();
  }
  const std::size_t colour = (index * 5) % kColours;
  void** top = reinterpret_cast<void**>(guard + stride_ - colour * kCacheLine);
  // As after a call: `entry` starts with the stack 8 bytes off a multiple of 16, and debuggers see a null
  // return address.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (std::size_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  return top;
}

}  // namespace onebit::cuda_cpu
