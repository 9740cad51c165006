// Two words of pinned memory by which a stream and a thread of the host tell each other how far they are.
//
// The stream writes the number of a step when its messages can be sent; the thread writes the number of a
// step whose messages have come, and the stream stops until it has. Numbers grow, around the end of 32 bits;
// a stop is over for the number it waits for and all later ones. Streams use stream memory operations
// (cuStreamWriteValue32, cuStreamWaitValue32, looked up when it is made); where the driver refuses these, a
// kernel of one thread, which looks at the word about every microsecond. That kernel, too, waits until the
// host writes: whoever uses this writes in any case. Neither is a host function. `signal` and `stop` by one
// thread at a time; the rest by any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "collective/nccl/pinned_memory.h"

namespace onebit::nccl {

/// Whether a count that has come to `seen` has reached `number`.
constexpr bool has_reached(std::uint32_t seen, std::uint32_t number) {
  return static_cast<std::int32_t>(seen - number) >= 0;
}

class StreamWords {
 public:
  /// On the current device; `stream` is one of its, on which the driver's operations are tried.
  static onebit::Result<std::unique_ptr<StreamWords>> create(cudaStream_t stream);

  /// Behind what the stream has been given, its number becomes `number`.
  cudaError_t signal(cudaStream_t stream, std::uint32_t number) const;
  /// The stream stops until the host's number has reached `number`.
  cudaError_t stop(cudaStream_t stream, std::uint32_t number) const;

  /// The stream's number. What it wrote before can be read.
  std::uint32_t of_stream() const { return __atomic_load_n(words_.as<std::uint32_t>(), __ATOMIC_ACQUIRE); }
  /// Sets the host's number.
  void set_host(std::uint32_t number) const {
    __atomic_store_n(words_.as<std::uint32_t>() + kHost, number, __ATOMIC_RELEASE);
  }
  bool has_memory_operations() const { return write_value_ != nullptr; }

 private:
  StreamWords() = default;
  void find_operations(cudaStream_t stream);
  std::uint32_t* device_word(std::size_t i) const { return words_.device<std::uint32_t>() + i; }

  /// The host's word has a cache line of its own.
  static constexpr std::size_t kHost = 32;
  PinnedMemory words_;
  using Operation = int (*)(cudaStream_t stream, unsigned long long address, std::uint32_t value,
                            unsigned flags);
  Operation write_value_ = nullptr;
  Operation wait_value_ = nullptr;
};

}  // namespace onebit::nccl
