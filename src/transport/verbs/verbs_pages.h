// Memory that a device reads and writes for us: pages of its own, zeroed.
//
// A forked child does not have registered pages (ibv_fork_init). Of an allocator's memory it would miss what
// the allocator keeps there, and whatever else is in these pages; a mapping can be let go of without a look
// at it. Moves, does not copy.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace onebit::transport {

class VerbsPages {
 public:
  VerbsPages() = default;
  /// `what` is for the message.
  static Result<VerbsPages> make(std::size_t bytes, std::string_view what) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Status::system(errno, what);
    VerbsPages made;
    made.memory_ = Memory(static_cast<std::byte*>(memory), Unmap{bytes});
    return made;
  }
  std::byte* data() const noexcept { return memory_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const noexcept { ::munmap(memory, bytes); }
  };
  using Memory = std::unique_ptr<std::byte, Unmap>;

  Memory memory_;
};

}  // namespace onebit::transport
