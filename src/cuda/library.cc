#include "cuda/library.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "base/log.h"
#include "collective/nccl/device_guard.h"
#include "collective/nccl/levels.h"
#include "optimizer/cuda/side_table.h"

namespace onebit::cuda {
namespace {

using nccl::NcclCommunicator;

/// Calls body(); an exception, for want of memory, is an internal error.
template <typename Body>
nccl::Result guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& exception) {
    log(LogLevel::kWarn, "libonebit-cuda: {}", exception.what());
    return nccl::kInternalError;
  }
}

NcclCommunicator* create(const CommunicatorSettings& settings, char* message, std::size_t size) {
  NcclCommunicator* made = nullptr;
  guarded([&] {
    nccl::CommunicatorOptions options;
    options.comm = settings.comm;
    options.nccl = settings.nccl;
    options.device = settings.device;
    options.chunk = settings.chunk;
    options.codec.parameters = {settings.block,
                                settings.scale_is_mean ? codec::Scale::kMean : codec::Scale::kRms};
    options.codec.error =
        settings.errors_are_bfloat16 ? codec::cuda::ErrorType::kBFloat16 : codec::cuda::ErrorType::kFloat32;
    options.codec.ranks = settings.ranks;
    options.codec.rank = settings.rank;
    auto result = NcclCommunicator::create(options);
    if (result.ok()) {
      made = std::move(*result).release();
    } else {
      std::snprintf(message, size, "%s", result.status().message().c_str());
    }
    return nccl::kSuccess;
  });
  return made;
}

CommunicatorStatistics statistics(const NcclCommunicator* communicator) {
  const nccl::Statistics now = communicator->statistics();
  return {now.calls, now.batches, now.bytes, now.sent_bytes, now.residual_bytes, now.resets};
}

nccl::Result reduce(Reduction* calls, std::size_t count) {
  return guarded([&] {
    std::vector<nccl::Request> requests;
    for (const Reduction& call : std::span(calls, count)) {
      requests.push_back({call.communicator,
                          call.send,
                          call.receive,
                          {call.count, call.scatters},
                          static_cast<DataType>(call.type),
                          static_cast<ReduceOp>(call.op),
                          call.tag,
                          call.stream,
                          false});
    }
    const nccl::Result result = nccl::run(requests);
    for (std::size_t i = 0; i < count; ++i) calls[i].compressed = requests[i].compressed;
    return result;
  });
}

nccl::Result compare(Comparison* comparisons, std::size_t count) {
  return guarded([&] {
    std::vector<nccl::Exchange> exchanges;
    for (const Comparison& one : std::span(comparisons, count)) {
      exchanges.push_back({one.communicator, {one.mine, one.count}, nullptr, {}});
    }
    const nccl::Result result = nccl::exchange(exchanges);
    if (result != nccl::kSuccess) return result;
    for (std::size_t i = 0; i < count; ++i) {
      std::copy(exchanges[i].all.begin(), exchanges[i].all.end(), comparisons[i].all);
    }
    return nccl::kSuccess;
  });
}

nccl::Result make_levels(LevelRequest* requests, std::size_t count) {
  return guarded([&] {
    std::vector<nccl::Levels::Making> all;
    for (LevelRequest& request : std::span(requests, count)) {
      const nccl::CommunicatorOptions& options = request.communicator->options();
      const auto place = nccl::place_of({request.hosts, options.codec.ranks}, options.codec.rank);
      request.nodes = place ? place->nodes : 0;
      if (place) all.push_back({request.communicator, *place});
    }
    return nccl::Levels::make(all);
  });
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    cudaGetLastError();  // another stream's capture makes this one's default stream unusable: NCCL says what
                         // it thinks of it
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

bool is_reachable(const void* address, int device) {
  const nccl::DeviceGuard guard(device);
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered;
}

constexpr Library kLibrary = {
    .version = kLibraryVersion,
    .create = create,
    .destroy = [](NcclCommunicator* communicator) { delete communicator; },
    .abort = [](NcclCommunicator* communicator) { communicator->abort(); },
    .statistics = statistics,
    .reduce = reduce,
    .compare = compare,
    .make_levels = make_levels,
    .close = [](NcclCommunicator* communicator) { communicator->close(); },
    .is_capturing = is_capturing,
    .is_reachable = is_reachable,
    .set_log_level = [](int level) { onebit::set_log_level(static_cast<LogLevel>(level)); },
    .optimizers = &optimizer::cuda::kSideTable,
};

}  // namespace
}  // namespace onebit::cuda

extern "C" __attribute__((visibility("default"))) const onebit::cuda::Library* onebit_cuda_library() {
  return &onebit::cuda::kLibrary;
}
