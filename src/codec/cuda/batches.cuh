// Launches of a kernel over a list of pieces: as many pieces at once as its parameters hold, on a grid as
// large as the device can run at once. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>

#include "codec/cuda/code.cuh"
#include "codec/cuda/whole.cuh"

namespace onebit::codec::cuda {

/// Blocks of kKernel that the current device runs at once. Asked for once a device.
template <auto kKernel>
cudaError_t resident_blocks(unsigned* blocks) {
  constexpr int kDevices = 64;
  static std::atomic<unsigned> known[kDevices];
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device < kDevices) *blocks = known[device].load(std::memory_order_relaxed);
  if (device < kDevices && *blocks != 0) return cudaSuccess;
  int processors = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  int each = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<const void*>(kKernel),
                                                        kThreads, 0);
  if (error != cudaSuccess) return error;
  *blocks = static_cast<unsigned>(std::max(1, each * processors));
  if (device < kDevices) known[device].store(*blocks, std::memory_order_relaxed);
  return cudaSuccess;
}

/// Calls launch(batch, grid) for all pieces that have elements. `units_a_block`: units that a block of
/// threads takes at once.
template <auto kKernel, typename Piece, typename Launch>
cudaError_t for_batches(std::span<const Piece> pieces, unsigned unit_elements, unsigned units_a_block,
                        Launch launch) {
  Batch<Piece> batch;
  batch.unit_elements = unit_elements;
  batch.count = 0;
  batch.first_unit[0] = 0;
  const auto flush = [&] {
    const std::uint32_t units = batch.first_unit[batch.count];
    if (units == 0) return cudaSuccess;
    unsigned blocks = 0;
    if (const cudaError_t error = resident_blocks<kKernel>(&blocks); error != cudaSuccess) return error;
    const cudaError_t error =
        launch(batch, dim3(std::min(blocks, (units + units_a_block - 1) / units_a_block)));
    batch.count = 0;
    return error;
  };
  for (const Piece& piece : pieces) {
    if (piece.elements == 0) continue;
    batch.pieces[batch.count] = piece;
    const std::size_t units = (piece.elements + unit_elements - 1) / unit_elements;
    batch.first_unit[batch.count + 1] = batch.first_unit[batch.count] + static_cast<std::uint32_t>(units);
    if (++batch.count < Batch<Piece>::kMost) continue;
    if (const cudaError_t error = flush(); error != cudaSuccess) return error;
  }
  return flush();
}

/// The kernels over a source that code blocks.
template <typename Source>
cudaError_t code(std::span<const typename Source::Piece> pieces, Parameters parameters,
                 typename Source::Options options, cudaStream_t stream) {
  const auto launch = [&]<auto kKernel>(unsigned units_a_block) {
    return for_batches<kKernel>(pieces, parameters.block, units_a_block, [&](const auto& batch, dim3 grid) {
      return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch, parameters.scale, options);
    });
  };
  switch (parameters.block) {
    case 256:
      return launch.template operator()<code_small_blocks<Source, 1>>(kWarps);
    case 512:
      return launch.template operator()<code_small_blocks<Source, 2>>(kWarps);
    case 1024:
      return launch.template operator()<code_small_blocks<Source, 4>>(kWarps);
    case 2048:
      return launch.template operator()<code_small_blocks<Source, 8>>(kWarps);
    case 4096:
      return launch.template operator()<code_large_blocks<Source, 2>>(1);
    case 8192:
      return launch.template operator()<code_large_blocks<Source, 4>>(1);
    default:
      return launch.template operator()<code_large_blocks<Source, 8>>(1);
  }
}

template <typename Source>
cudaError_t sum(std::span<const typename Source::Piece> pieces, Scale scale, typename Source::Options options,
                cudaStream_t stream) {
  constexpr auto kKernel = sum_sub_blocks<Source>;
  return for_batches<kKernel>(pieces, kSubBlock, kWarps, [&](const auto& batch, dim3 grid) {
    return cu::launch(kKernel, grid, dim3(kThreads), 0, stream, batch, scale, options);
  });
}

}  // namespace onebit::codec::cuda
