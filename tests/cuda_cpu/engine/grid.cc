#include "cuda_cpu/engine/grid.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_cpu/engine/block.h"

namespace onebit::cuda_cpu {
namespace {

/// Every `stride`-th block from `first` on. Dealt so, neighbours meet on different threads, and so do their
/// races.
void run_blocks(Block& block, const Grid& grid, const EngineOptions& options, std::uint64_t first,
                std::uint64_t stride) {
  static std::mutex one_at_a_time;
  const dim3 blocks = grid.blocks;
  const std::uint64_t plane = static_cast<std::uint64_t>(blocks.x) * blocks.y;
  block.enter(grid);
  for (std::uint64_t i = first; i < plane * blocks.z; i += stride) {
    const uint3 index{static_cast<unsigned>(i % blocks.x), static_cast<unsigned>(i / blocks.x % blocks.y),
                      static_cast<unsigned>(i / plane)};
    std::unique_lock lock(one_at_a_time, std::defer_lock);
    if (options.serial_blocks) lock.lock();
    block.run(index);
  }
}

/// The calling thread's own block for the environment's options: a stream keeps its fibers from kernel to
/// kernel.
Block& own_block() {
  static thread_local const std::unique_ptr<Block> block = std::make_unique<Block>(engine_options());
  return *block;
}

}  // namespace

void run_grid(const Grid& grid, const EngineOptions& options) {
  const std::uint64_t total = static_cast<std::uint64_t>(grid.blocks.x) * grid.blocks.y * grid.blocks.z;
  const std::uint64_t workers = std::min<std::uint64_t>(options.workers, total);
  std::vector<std::thread> others;
  for (std::uint64_t i = 1; i < workers; ++i) {
    others.emplace_back([&grid, &options, i, workers] {
      Block block(options);
      run_blocks(block, grid, options, i, workers);
    });
  }
  if (&options == &engine_options()) {
    run_blocks(own_block(), grid, options, 0, workers);
  } else {
    Block block(options);
    run_blocks(block, grid, options, 0, workers);
  }
  for (std::thread& other : others) other.join();
}

}  // namespace onebit::cuda_cpu
