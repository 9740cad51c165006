// The stand-in's own settings, CUDA_CPU_*, read once from the environment; docs/cuda-on-cpu.md has the list.
// They are no settings of onebit's: they exist in test programs only. A value that cannot be parsed ends the
// program, saying so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onebit::cuda_cpu {

/// In which order the ready threads of a block, and its warps, take their turns.
enum class Order : std::uint8_t { kForward, kReverse, kRandom };

struct EngineOptions {
  Order order = Order::kForward;  ///< CUDA_CPU_ORDER=forward|reverse|random:SEED
  unsigned seed = 1;
  unsigned workers = 1;        ///< CUDA_CPU_WORKERS: threads that the blocks of one grid are dealt to
  bool serial_blocks = false;  ///< CUDA_CPU_SERIAL_BLOCKS=1: one block at a time in the whole process
  bool tsan_fiber_per_warp =
      false;  ///< CUDA_CPU_TSAN_FIBERS=thread|warp: what the thread sanitizer sees as a thread
};
const EngineOptions& engine_options();

struct RuntimeOptions {
  int devices = 8;                        ///< CUDA_CPU_DEVICES
  std::size_t device_memory = 4UL << 30;  ///< CUDA_CPU_DEVICE_MEMORY_MIB: of each device, here in bytes
  bool protect = false;   ///< CUDA_CPU_PROTECT=1: device memory is inaccessible while no operation runs
  unsigned delay_us = 0;  ///< CUDA_CPU_DELAY_US: a pause before each operation of a stream
  /// CUDA_CPU_STREAM_MEMORY_OPERATIONS=0: the driver refuses cuStreamWaitValue and cuStreamWriteValue.
  bool stream_memory_operations = true;
  std::string
      kernels;  ///< CUDA_CPU_KERNELS: libraries with kernels for programs built by nvcc, separated by ':'
};
const RuntimeOptions& runtime_options();

/// Digits from `least` to `most`, or `otherwise` when the variable is not set.
unsigned number_from_environment(const char* name, unsigned otherwise, unsigned least, unsigned most);

}  // namespace onebit::cuda_cpu
