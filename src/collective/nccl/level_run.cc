// The calls of communicators with two levels around what is compressed: src/collective/nccl/levels.h.
#include <algorithm>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"
#include "collective/nccl/levels.h"
#include "collective/nccl/running.h"

namespace onebit::nccl {
namespace {

/// An allreduce in two levels.
struct LevelCall {
  const Request* request;
  const Levels* levels;
  cudaStream_t stream;             ///< the request's, or one of its communicator's own
  collective::PartitionPlan plan;  ///< what each rank of a node has of it

  LevelCall(const Request& call, const Levels& its, cudaStream_t its_stream)
      : request(&call),
        levels(&its),
        stream(its_stream),
        plan(call.shape.count, its.place().size, call.shape.count + 8) {}

  Type type() const { return static_cast<Type>(request->type); }
  Op op() const { return static_cast<Op>(request->op); }
  collective::Range own() const { return plan.partition(levels->place().place); }
  std::byte* at(void* buffer, collective::Range range) const {
    return static_cast<std::byte*>(buffer) + range.begin * size_of(request->type);
  }
  /// Whether one call of NCCL's can take all partitions.
  bool is_even() const { return own_count() * levels->place().size == request->shape.count; }
  std::size_t own_count() const { return plan.partition_elements(); }
  /// Calls each(partition, rank of the node) for those that have elements.
  template <typename Each>
  Result for_partitions(Each each) const {
    for (unsigned rank = 0; rank < levels->place().size; ++rank) {
      const collective::Range range = plan.partition(rank);
      if (range.length == 0) continue;
      if (const Result result = each(range, static_cast<int>(rank)); result != kSuccess) return result;
    }
    return kSuccess;
  }
  /// What is compressed of it: this rank's partition of the node's sum, in place.
  Request between() const {
    std::byte* const slice = at(request->receive, own());
    return {&levels->compressed(), slice,        slice,  own().length, request->type,
            request->op,           request->tag, stream, false};
  }
};

/// Calls each(call) in one NCCL group.
template <typename Each>
Result in_one_group(std::span<const LevelCall> calls, const char* what, Each each) {
  if (calls.empty()) return kSuccess;
  const Functions& nccl = calls.front().request->communicator->options().nccl;
  const Result result = in_group(nccl, [&] {
    for (const LevelCall& call : calls) {
      if (call.levels->is_aborted()) return kInvalidUsage;
      if (const Result one = each(nccl, call); one != kSuccess) return one;
    }
    return kSuccess;
  });
  return result == kSuccess ? result : failed(result, what, nccl);
}

Result reduce_inside(const Functions& nccl, const LevelCall& call) {
  const Request& request = *call.request;
  const Comm comm = call.levels->inside();
  if (call.is_even()) {
    return nccl.reduce_scatter(request.send, call.at(request.receive, call.own()), call.own_count(),
                               call.type(), call.op(), comm, call.stream);
  }
  return call.for_partitions([&](collective::Range range, int rank) {
    return nccl.reduce(call.at(const_cast<void*>(request.send), range), call.at(request.receive, range),
                       range.length, call.type(), call.op(), rank, comm, call.stream);
  });
}

Result gather_inside(const Functions& nccl, const LevelCall& call) {
  const Request& request = *call.request;
  const Comm comm = call.levels->inside();
  if (call.is_even()) {
    return nccl.all_gather(call.at(request.receive, call.own()), request.receive, call.own_count(),
                           call.type(), comm, call.stream);
  }
  return call.for_partitions([&](collective::Range range, int rank) {
    std::byte* const part = call.at(request.receive, range);
    return nccl.broadcast(part, part, range.length, call.type(), rank, comm, call.stream);
  });
}

/// Orders the streams of calls and of their requests, where they differ: `join(communicator, call)`.
template <typename Join>
Result order(std::span<const LevelCall> calls, Join join) {
  for (const LevelCall& call : calls) {
    if (call.stream == call.request->stream) continue;
    NcclCommunicator& communicator = *call.request->communicator;
    const int device = communicator.options().device;
    const DeviceGuard guard(device);
    const cudaError_t error = guard.error() == cudaSuccess ? join(communicator, call) : guard.error();
    if (error != cudaSuccess) return failed(error, "ordering streams", device);
  }
  return kSuccess;
}

}  // namespace

Result run(std::span<Request> requests) {
  const bool are_several = std::any_of(requests.begin(), requests.end(), [&](const Request& request) {
    return request.communicator != requests.front().communicator;
  });
  std::vector<LevelCall> calls;
  calls.reserve(requests.size());  // sources look at them
  /// What is compressed, and whether it is a request itself or a call's part between nodes.
  std::vector<Request> flat;
  struct Source {
    Request* request;
    const LevelCall* call;
  };
  std::vector<Source> sources;
  for (Request& request : requests) {
    const Levels* const levels = request.communicator->levels();
    if (levels == nullptr || request.shape.scatters) {
      flat.push_back(request);
      sources.push_back({&request, nullptr});
      continue;
    }
    request.compressed = true;
    const LevelCall& call = calls.emplace_back(
        request, *levels, are_several ? request.communicator->own_stream() : request.stream);
    if (call.own().length == 0) continue;
    flat.push_back(call.between());
    sources.push_back({nullptr, &call});
  }
  Result result = order(calls, [](NcclCommunicator& communicator, const LevelCall& call) {
    return communicator.join(call.stream, call.request->stream);
  });
  if (result == kSuccess) result = in_one_group(calls, "reducing inside nodes", reduce_inside);
  if (result == kSuccess) result = run_flat(flat);
  if (result != kSuccess) return result;
  std::vector<LevelCall> lacking;  ///< memory
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const auto& [request, call] = sources[i];
    if (request != nullptr) {
      request->compressed = flat[i].compressed;
    } else if (!flat[i].compressed) {
      lacking.push_back(*call);
    }
  }
  result = in_one_group(lacking, "reducing between nodes", [](const Functions& nccl, const LevelCall& call) {
    std::byte* const slice = call.at(call.request->receive, call.own());
    return nccl.all_reduce(slice, slice, call.own().length, call.type(), call.op(), call.levels->between(),
                           call.stream);
  });
  if (result == kSuccess) result = in_one_group(calls, "gathering inside nodes", gather_inside);
  if (result != kSuccess) return result;
  return order(calls, [](NcclCommunicator& communicator, const LevelCall& call) {
    return communicator.join(call.request->stream, call.stream);
  });
}

}  // namespace onebit::nccl
