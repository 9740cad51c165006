// The calls of communicators with two levels around what is compressed: src/collective/nccl/levels.h.
#include <algorithm>
#include <functional>
#include <map>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"
#include "collective/nccl/level_call.h"
#include "collective/nccl/running.h"

namespace onebit::nccl {
namespace {

/// Calls part(call, NCCL) of each in one NCCL group.
template <typename Part>
Result in_one_group(std::span<const LevelCall> calls, const char* what, Part part) {
  if (calls.empty()) return kSuccess;
  const Functions& nccl = calls.front().request().communicator->options().nccl;
  const Result result = in_group(nccl, [&] {
    for (const LevelCall& call : calls) {
      if (call.levels().is_aborted()) return kInvalidUsage;
      if (const Result one = part(call, nccl); one != kSuccess) return one;
    }
    return kSuccess;
  });
  return result == kSuccess ? result : failed(result, what, nccl);
}

/// Calls step(communicator, call) of each, with its device current; the first failure does not keep the
/// others.
template <typename Step>
Result on_devices(std::span<const LevelCall> calls, Step step) {
  Result result = kSuccess;
  for (const LevelCall& call : calls) {
    NcclCommunicator& communicator = *call.request().communicator;
    const int device = communicator.options().device;
    const DeviceGuard guard(device);
    const cudaError_t error = guard.error() == cudaSuccess ? step(communicator, call) : guard.error();
    if (error != cudaSuccess && result == kSuccess) result = failed(error, "ordering streams", device);
  }
  return result;
}

/// Their streams behind those of the requests, and the memory for sums free.
Result begin_parts(std::span<const LevelCall> calls) {
  return on_devices(calls, [](NcclCommunicator& communicator, const LevelCall& call) {
    const cudaStream_t stream = call.request().stream;
    cudaError_t error = cudaSuccess;
    if (call.stream() != stream) error = communicator.join(call.stream(), stream);
    if (error == cudaSuccess && call.scatters()) error = call.levels().compressed().enter(call.stream());
    return error;
  });
}

/// The memory for sums behind their streams, and the requests' streams behind them.
Result end_parts(std::span<const LevelCall> calls) {
  return on_devices(calls, [](NcclCommunicator& communicator, const LevelCall& call) {
    const cudaStream_t stream = call.request().stream;
    cudaError_t error = cudaSuccess;
    if (call.scatters()) error = call.levels().compressed().leave(call.stream());
    if (error == cudaSuccess && call.stream() != stream) error = communicator.join(stream, call.stream());
    return error;
  });
}

/// What reduce-scatters have in memory for sums, by communicator.
using SumsBytes = std::map<NcclCommunicator*, std::size_t>;

/// Makes the memory that reduce-scatters of communicators with levels need for sums, where all ranks have it.
Result admit_sums(const SumsBytes& wanted) {
  std::vector<std::uint64_t> answers;
  std::vector<Exchange> exchanges;
  answers.reserve(wanted.size());  // exchanges look at them
  for (const auto& [communicator, bytes] : wanted) {
    Levels& levels = *communicator->levels();
    if (levels.is_asked_for_sums(bytes)) continue;
    answers.push_back(levels.make_sums(bytes));
    exchanges.push_back({communicator, {&answers.back(), 1}, nullptr, {}});
  }
  if (const Result result = exchange(exchanges); result != kSuccess) return result;
  for (const Exchange& one : exchanges) {
    const auto lacking = std::find(one.all.begin(), one.all.end(), std::uint64_t{0});
    one.communicator->levels()->admit_sums(wanted.at(one.communicator), lacking == one.all.end());
    if (lacking == one.all.end()) continue;
    log(LogLevel::kWarn,
        "rank {} has no device memory left for the sums of nodes of reduce-scatters, {} bytes: they go the "
        "exact way on all ranks",
        lacking - one.all.begin(), wanted.at(one.communicator));
  }
  return kSuccess;
}

/// What of the calls is compressed, and whether it is a request itself or a call's part between nodes.
struct Flat {
  struct Source {
    Request* request;
    const LevelCall* call;
  };
  std::vector<Request> requests;
  std::vector<Source> sources;

  void add(const Request& request, Source source) {
    requests.push_back(request);
    sources.push_back(source);
  }
};

/// What is compressed of the calls, after the parts inside nodes and before those that follow.
Result run_parts(std::span<const LevelCall> calls, Flat& flat) {
  Result result = begin_parts(calls);
  if (result == kSuccess)
    result = in_one_group(calls, "reducing inside nodes", std::mem_fn(&LevelCall::reduce_inside));
  if (result == kSuccess) result = run_flat(flat.requests);
  if (result != kSuccess) return result;
  std::vector<LevelCall> lacking;  ///< memory
  for (std::size_t i = 0; i < flat.requests.size(); ++i) {
    const auto& [request, call] = flat.sources[i];
    if (request != nullptr) {
      request->compressed = flat.requests[i].compressed;
    } else if (!flat.requests[i].compressed) {
      lacking.push_back(*call);
    }
  }
  result = in_one_group(lacking, "reducing between nodes", std::mem_fn(&LevelCall::reduce_between_exactly));
  if (result == kSuccess)
    result = in_one_group(calls, "gathering inside nodes", std::mem_fn(&LevelCall::gather_inside));
  return result;
}

}  // namespace

Result run(std::span<Request> requests) {
  const bool are_several = std::any_of(requests.begin(), requests.end(), [&](const Request& request) {
    return request.communicator != requests.front().communicator;
  });
  SumsBytes sums;
  for (const Request& request : requests) {
    const Levels* const levels = request.communicator->levels();
    if (levels != nullptr && request.shape.scatters)
      sums[request.communicator] += LevelCall::sums_bytes(request, levels->place());
  }
  Result result = admit_sums(sums);
  if (result != kSuccess) return result;

  std::vector<LevelCall> calls;
  calls.reserve(requests.size());  // sources look at them
  Flat flat;
  SumsBytes used;
  for (Request& request : requests) {
    Levels* const levels = request.communicator->levels();
    if (levels == nullptr) {
      flat.add(request, {&request, nullptr});
      continue;
    }
    std::byte* own_sums = nullptr;
    if (request.shape.scatters) {
      request.compressed = levels->has_sums(sums[request.communicator]);
      if (!request.compressed) continue;
      std::size_t& begin_of_own = used[request.communicator];
      own_sums = levels->sums() + begin_of_own;
      begin_of_own += LevelCall::sums_bytes(request, levels->place());
    }
    request.compressed = true;
    const LevelCall& call = calls.emplace_back(
        request, *levels, are_several ? request.communicator->own_stream() : request.stream, own_sums);
    if (const auto part = call.between()) flat.add(*part, {nullptr, &call});
  }
  result = run_parts(calls, flat);
  // After a failure, too: what the streams were given before still uses the sums and the job's buffers.
  const Result ended = end_parts(calls);
  return result == kSuccess ? ended : result;
}

}  // namespace onebit::nccl
