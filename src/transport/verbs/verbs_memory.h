// Registered memory: what a device may read and write, kept by range for as long as somebody holds it.
//
// A registration pins pages and costs as much as copying some of them, so all who use a range share one, and
// a range inside another needs none of its own. It goes when its last holder lets go, and not later: behind a
// buffer that was freed in the meantime there would be other pages than the device has, and what it writes
// would be lost without a sign. Who sends from the same buffers again and again holds a Memory of them.
// Invariant: a region outlives its holders. Threads: any; NCCL registers while a connection is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_library.h"

namespace onebit::transport {

class RegisteredMemory {
 public:
  /// `flushed`: what is written there may be read back, to see that it has arrived.
  RegisteredMemory(const VerbsLibrary& library, ibv_pd* domain, std::string device, bool flushed)
      : library_(&library), domain_(domain), device_(std::move(device)), flushed_(flushed) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

 private:
  int access(bool writable) const noexcept;
  struct Region {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    bool writable = false;
    std::size_t holders = 0;
    VerbsRegion region;
  };
  using Regions = std::list<Region>;

 public:
  /// Holds a range registered.
  class Hold {
   public:
    Hold() noexcept = default;
    Hold(Hold&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), at_(other.at_) {}
    Hold& operator=(Hold&& other) noexcept {
      if (this == &other) return *this;
      reset();
      owner_ = std::exchange(other.owner_, nullptr);
      at_ = other.at_;
      return *this;
    }
    ~Hold() { reset(); }
    void reset() noexcept;
    /// One more of the same range.
    Hold share() const noexcept;
    std::uint32_t local_key() const noexcept { return at_->region->lkey; }
    std::uint32_t remote_key() const noexcept { return at_->region->rkey; }

   private:
    friend class RegisteredMemory;
    RegisteredMemory* owner_ = nullptr;
    Regions::iterator at_;
  };

  /// `writable`: by this device and by peers that are told the key. An error says what limit to raise.
  Result<Hold> hold(const void* data, std::size_t bytes, bool writable);
  /// Memory of a GPU at this address of its; writable.
  Result<Hold> hold(const void* data, std::size_t bytes, const DmaBuf& buffer);

 private:
  Hold held(Regions::iterator at) noexcept;

  const std::uint32_t generation_ = UniqueSocket::process_generation();
  const VerbsLibrary* library_;
  ibv_pd* domain_;
  std::string device_;
  bool flushed_;
  std::mutex mutex_;
  Regions regions_;
};

}  // namespace onebit::transport
