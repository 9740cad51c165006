// What libonebit-cuda.so does for an optimizer in device memory: functions for plain data, found through
// cuda/library.h. DeviceSide (device_side.h) is what stands behind them.
//
// Threads: as DeviceSide's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/status.h"
#include "collective/nccl/nccl_abi.h"

namespace onebit::optimizer {
enum class Pass : std::uint8_t;
struct Agreement;
struct Job;
struct LambNumbers;
struct LambRule;
}  // namespace onebit::optimizer

namespace onebit::optimizer::cuda {

class DeviceSide;

/// A Status as plain data; a long message is cut.
struct Report {
  int code = 0;
  char message[500] = "";

  Report() = default;
  explicit Report(const Status& status) : code(static_cast<int>(status.code())) {
    std::snprintf(message, sizeof message, "%s", status.message().c_str());
  }
  Status status() const { return {static_cast<Code>(code), message}; }
};

/// Where the optimizer is.
struct SideSettings {
  nccl::Comm comm;  ///< null: one rank
  nccl::Functions nccl;
  int device;
  unsigned ranks, rank;
  cudaStream_t stream;
  std::uint32_t block;  ///< 0: whole
  bool scale_is_mean;
  std::size_t chunk;           ///< elements, 0: automatic
  std::uint64_t milliseconds;  ///< that a wait may take
};

struct SideTable {
  Report (*create)(const SideSettings& settings, DeviceSide** made);
  void (*destroy)(DeviceSide* side);
  /// The device that is current; for a program without NCCL.
  Report (*current_device)(int* device);

  Report (*allocate)(DeviceSide* side, std::size_t bytes, void** memory);
  void (*release)(DeviceSide* side, void* memory);
  void (*zero)(DeviceSide* side, void* to, std::size_t bytes);
  void (*copy)(DeviceSide* side, void* to, const void* from, std::size_t bytes);
  Report (*read)(DeviceSide* side, void* to, const void* from, std::size_t bytes);
  Report (*write)(DeviceSide* side, void* to, const void* from, std::size_t bytes);
  Report (*check)(DeviceSide* side, const void* address, std::size_t alignment);

  Report (*make_queue)(DeviceSide* side, const std::size_t* counts, std::size_t jobs);
  void (*run)(DeviceSide* side, Pass pass, const Job* jobs, std::size_t count);
  Report (*fetch)(DeviceSide* side, Job* jobs, std::size_t count);
  Report (*agree)(DeviceSide* side, Job* jobs, std::size_t count, Agreement* agreement);
  void (*choose_steps)(DeviceSide* side, const LambRule* rules, const LambNumbers* numbers,
                       std::size_t count);
  Report (*fetch_numbers)(DeviceSide* side, LambNumbers* numbers, std::size_t count);

  Report (*mean)(DeviceSide* side, float* data, std::size_t count);
  Report (*compressed_mean)(DeviceSide* side, float* data, std::size_t unit);
  Report (*complete)(DeviceSide* side);
  Report (*all_gather)(DeviceSide* side, const void* send, void* receive, std::size_t bytes);
  Report (*usable)(const DeviceSide* side);

  Report (*add_unit)(DeviceSide* side, std::size_t count, bool whole);
  /// `worker`: the unit's elements; `owner`: those of this rank's partition.
  Report (*read_residual)(DeviceSide* side, std::size_t unit, float* worker, float* owner);
  Report (*write_residual)(DeviceSide* side, std::size_t unit, const float* worker, const float* owner);
  void (*clear_residuals)(DeviceSide* side);
  bool (*has_worthless_residuals)(const DeviceSide* side);
  std::size_t (*residual_bytes)(const DeviceSide* side);
};

/// The one of this library.
extern const SideTable kSideTable;

}  // namespace onebit::optimizer::cuda
