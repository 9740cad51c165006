// Memory for bytes or floats, aligned to 64 bytes, zeroed, from the system's zero pages where it is large. An
// allocation that fails is a Status, not an exception. Value type that can be moved, not copied.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"

namespace onebit::collective {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        data_(other.data_),
        size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(memory_); }

  static Result<AlignedBuffer> create(std::size_t size) {
    AlignedBuffer buffer;
    if (size == 0) return buffer;
    constexpr std::size_t kAlignment = 64;
    buffer.memory_ =
        size > (SIZE_MAX - kAlignment) / sizeof(T) ? nullptr : std::calloc(size * sizeof(T) + kAlignment, 1);
    if (buffer.memory_ == nullptr) {
      return Status::error(Code::kSystemError, "out of memory for {} bytes", size * sizeof(T));
    }
    void* start = buffer.memory_;
    std::size_t space = size * sizeof(T) + kAlignment;
    buffer.data_ = static_cast<T*>(std::align(kAlignment, size * sizeof(T), start, space));
    buffer.size_ = size;
    return buffer;
  }
  /// Makes room for at least `size` elements; contents are lost when it grows.
  Status reserve(std::size_t size) {
    if (size <= size_) return Status();
    *this = AlignedBuffer();
    ONEBIT_ASSIGN_OR_RETURN(*this, create(size));
    return Status();
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  std::span<T> span() noexcept { return {data_, size_}; }

 private:
  void* memory_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace onebit::collective
