// Where an optimizer's arrays lie: memory that its passes can use, the host's or a device's.
//
// Invariant: `zero` and `copy` take their place in the order of the runner's passes, so none of them waits,
// and what fails in them shows at the runner's next fetch; `read` and `write` follow all of them. Threads: as
// Core's.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace onebit::optimizer {

class Memory {
 public:
  virtual ~Memory() = default;
  /// Zeros, aligned to 64 bytes; null for 0 bytes. kSystemError when there is no more.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // ---- in the order of passes ----
  virtual void zero(float* to, std::size_t count) = 0;
  virtual void copy(float* to, const float* from, std::size_t count) = 0;

  // ---- between it and the host; they wait ----
  /// Also reads what passes have left before a failure.
  virtual Status read(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status write(void* to, const void* from, std::size_t bytes) = 0;

  /// kInvalidArgument when passes cannot use what lies at `address`, which a program gives: memory of another
  /// kind, or, on a device, elements of `alignment` bytes that are not aligned.
  virtual Status check(const void* address, std::size_t alignment) = 0;
};

/// The host's.
Memory& host_memory();

/// Floats in such memory. Moves, does not copy.
class Array {
 public:
  Array() noexcept = default;
  Array(Array&& other) noexcept
      : memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() {
    if (data_ != nullptr) memory_->release(data_);
  }

  /// Zeros. `memory` must outlive it.
  static Result<Array> create(Memory& memory, std::size_t size) {
    Array array;
    ONEBIT_ASSIGN_OR_RETURN(void* const data, memory.allocate(size * sizeof(float)));
    array.memory_ = &memory;
    array.data_ = static_cast<float*>(data);
    array.size_ = size;
    return array;
  }

  float* data() noexcept { return data_; }
  const float* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(float); }

 private:
  Memory* memory_ = nullptr;
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace onebit::optimizer
