// The phases of compressed allreduces, for all communicators that one thread drives at once.
#include <algorithm>

#include "base/log.h"
#include "collective/nccl/device_guard.h"
#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {
namespace {

Result failed(cudaError_t error, const char* what, int device) {
  log(LogLevel::kWarn, "{} on CUDA device {}: {}", what, device, cudaGetErrorString(error));
  return kUnhandledCudaError;
}
Result failed(Result result, const char* what, const Functions& nccl) {
  log(LogLevel::kWarn, "{}: {}", what, nccl.error_string(result));
  return result;
}

/// Calls body() within one NCCL group; the group is ended whatever it returns.
template <typename Body>
Result in_group(const Functions& nccl, Body body) {
  if (const Result result = nccl.group_start(); result != kSuccess) return result;
  const Result inside = body();
  const Result outside = nccl.group_end();
  return inside != kSuccess ? inside : outside;
}

}  // namespace

/// One request of each communicator, on its way through the phases.
class Running {
 public:
  static Result admit(std::span<Request> requests);
  static bool is_admitted(const Request& request) {
    return request.communicator->admitted_.at(request.count);
  }
  Result start(Request& request);
  Result run();
  bool has(const NcclCommunicator* communicator) const {
    return std::any_of(active_.begin(), active_.end(),
                       [&](const Active& one) { return one.communicator == communicator; });
  }

 private:
  struct Active {
    NcclCommunicator* communicator;
    Call call;
  };

  /// Calls step(active) for each that has chunk `chunk`, its device being current.
  template <typename Step>
  Result on_devices(std::size_t chunk, const char* what, Step step);
  Result exchange_pieces(std::size_t chunk);
  Result gather(std::size_t chunk);
  bool has_chunk(const Active& one, std::size_t chunk) const {
    return chunk < one.call.layout.plan().chunks();
  }
  bool is_aborted() const {
    return std::any_of(active_.begin(), active_.end(),
                       [](const Active& one) { return one.communicator->is_aborted_.load(); });
  }
  const Functions& nccl() const { return active_.front().communicator->options_.nccl; }

  std::vector<Active> active_;
};

Result exchange(std::span<Exchange> exchanges) {
  if (exchanges.empty()) return kSuccess;
  for (Exchange& one : exchanges) {
    if (one.stream == nullptr) one.stream = one.communicator->own_stream_;
  }
  const auto on_each = [&](const char* what, auto step) {
    for (Exchange& one : exchanges) {
      const int device = one.communicator->options_.device;
      const DeviceGuard guard(device);
      const cudaError_t error = guard.error() == cudaSuccess ? step(one) : guard.error();
      if (error != cudaSuccess) return failed(error, what, device);
    }
    return kSuccess;
  };
  const auto is_aborted = [&] {
    return std::any_of(exchanges.begin(), exchanges.end(),
                       [](const Exchange& one) { return one.communicator->is_aborted_.load(); });
  };
  const auto own = [](const Exchange& one) {
    return one.communicator->exchanged_.as<std::uint64_t>() +
           one.communicator->options_.codec.rank * one.mine.size();
  };
  Result result = on_each("telling the other ranks", [&](Exchange& one) {
    return cudaMemcpyAsync(own(one), one.mine.data(), one.mine.size_bytes(), cudaMemcpyHostToDevice,
                           one.stream);
  });
  if (result != kSuccess) return result;
  const Functions& nccl = exchanges.front().communicator->options_.nccl;
  result = in_group(nccl, [&] {
    if (is_aborted()) return kInvalidUsage;
    for (Exchange& one : exchanges) {
      const NcclCommunicator& communicator = *one.communicator;
      const Result each = nccl.all_gather(own(one), communicator.exchanged_.data(), one.mine.size(), kUint64,
                                          communicator.options_.comm, one.stream);
      if (each != kSuccess) return each;
    }
    return kSuccess;
  });
  if (result != kSuccess) {
    // The copies above read the caller's memory.
    for (Exchange& one : exchanges) cudaStreamSynchronize(one.stream);
    return failed(result, "ncclAllGather of what ranks tell each other", nccl);
  }
  result = on_each("hearing the other ranks", [&](Exchange& one) {
    one.all.resize(one.mine.size() * one.communicator->ranks());
    const cudaError_t error =
        cudaMemcpyAsync(one.all.data(), one.communicator->exchanged_.data(),
                        one.all.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost, one.stream);
    return error != cudaSuccess ? error : cudaStreamSynchronize(one.stream);
  });
  if (result != kSuccess) return result;
  if (is_aborted()) return kInvalidUsage;
  for (const Exchange& one : exchanges) {
    // What was to come from a rank that is gone has not come.
    Result error = kSuccess;
    result = nccl.async_error(one.communicator->options_.comm, &error);
    if (result == kSuccess) result = error;
    if (result != kSuccess) return failed(result, "what ranks tell each other", nccl);
  }
  return kSuccess;
}

Result Running::admit(std::span<Request> requests) {
  // A communicator's exchanges are one after the other, those of different ones together.
  for (;;) {
    std::vector<Exchange> exchanges;
    std::vector<const Request*> asked;
    std::vector<std::uint64_t> answers(requests.size());
    for (const Request& request : requests) {
      NcclCommunicator& communicator = *request.communicator;
      const auto is_its = [&](const Exchange& one) { return one.communicator == &communicator; };
      if (communicator.admitted_.contains(request.count) ||
          std::any_of(exchanges.begin(), exchanges.end(), is_its)) {
        continue;
      }
      const int device = communicator.options_.device;
      const DeviceGuard guard(device);
      if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
      std::uint64_t& answer = answers[asked.size()];
      answer = communicator.codec_.reserve(communicator.layout(request.count)) &&
               communicator.slots_.reserve(request.count);
      if (answer == 0) cudaGetLastError();
      exchanges.push_back({&communicator, {&answer, 1}, request.stream, {}});
      asked.push_back(&request);
    }
    if (exchanges.empty()) return kSuccess;
    for (Exchange& one : exchanges) {
      if (one.stream == nullptr) one.stream = one.communicator->own_stream_;
    }
    if (const Result result = exchange(exchanges); result != kSuccess) return result;
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      const std::vector<std::uint64_t>& all = exchanges[i].all;
      const auto lacking = std::find(all.begin(), all.end(), std::uint64_t{0});
      exchanges[i].communicator->admitted_[asked[i]->count] = lacking == all.end();
      if (lacking == all.end()) continue;
      log(LogLevel::kWarn,
          "rank {} has no device memory left to compress allreduces of {} elements: they go the exact way on "
          "all "
          "ranks",
          lacking - all.begin(), asked[i]->count);
    }
  }
}

Result Running::start(Request& request) {
  NcclCommunicator& communicator = *request.communicator;
  const int device = communicator.options_.device;
  const DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
  const Residuals* residuals = nullptr;
  cudaError_t error = communicator.enter(request.stream);
  if (error != cudaSuccess) return failed(error, "cudaStreamWaitEvent", device);
  const Identity identity{request.tag, *request.tag == '\0' ? request.send : nullptr, request.count,
                          request.type, request.op};
  error = communicator.slots_.find(identity, request.stream, &residuals);
  if (error != cudaSuccess) return failed(error, "preparing residuals", device);
  active_.push_back({&communicator,
                     {communicator.layout(request.count), request.send, request.receive, request.type,
                      request.op, residuals, request.stream}});
  ++communicator.statistics_.calls;
  communicator.statistics_.bytes += request.count * size_of(request.type);
  return kSuccess;
}

template <typename Step>
Result Running::on_devices(std::size_t chunk, const char* what, Step step) {
  for (Active& one : active_) {
    if (!has_chunk(one, chunk)) continue;
    const int device = one.communicator->options_.device;
    const DeviceGuard guard(device);
    const cudaError_t error = guard.error() == cudaSuccess ? step(one) : guard.error();
    if (error != cudaSuccess) return failed(error, what, device);
  }
  return kSuccess;
}

Result Running::exchange_pieces(std::size_t chunk) {
  return in_group(nccl(), [&] {
    if (is_aborted()) return kInvalidUsage;
    for (Active& one : active_) {
      if (!has_chunk(one, chunk)) continue;
      NcclCommunicator& communicator = *one.communicator;
      const CommunicatorOptions& options = communicator.options_;
      for (unsigned peer = 0; peer < options.codec.ranks; ++peer) {
        if (peer == options.codec.rank) continue;
        const int number = static_cast<int>(peer);
        const auto out = communicator.codec_.outgoing(one.call, chunk, peer);
        if (!out.empty()) {
          const Result result =
              nccl().send(out.data(), out.size(), kUint8, number, options.comm, one.call.stream);
          if (result != kSuccess) return result;
        }
        const auto in = communicator.codec_.incoming(one.call, chunk, peer);
        if (!in.empty()) {
          const Result result =
              nccl().receive(in.data(), in.size(), kUint8, number, options.comm, one.call.stream);
          if (result != kSuccess) return result;
        }
        communicator.statistics_.sent_bytes += out.size();
      }
    }
    return kSuccess;
  });
}

Result Running::gather(std::size_t chunk) {
  return in_group(nccl(), [&] {
    if (is_aborted()) return kInvalidUsage;
    for (Active& one : active_) {
      if (!has_chunk(one, chunk)) continue;
      NcclCommunicator& communicator = *one.communicator;
      const CommunicatorOptions& options = communicator.options_;
      const std::size_t stride = one.call.layout.stride(chunk);
      std::byte* const all = communicator.codec_.gathered();
      const Result result = nccl().all_gather(all + options.codec.rank * stride, all, stride, kUint8,
                                              options.comm, one.call.stream);
      if (result != kSuccess) return result;
      communicator.statistics_.sent_bytes += (options.codec.ranks - 1) * stride;
    }
    return kSuccess;
  });
}

Result Running::run() {
  std::size_t chunks = 0;
  for (const Active& one : active_) chunks = std::max(chunks, one.call.layout.plan().chunks());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    Result result = on_devices(chunk, "encoding",
                               [&](Active& one) { return one.communicator->codec_.encode(one.call, chunk); });
    if (result != kSuccess) return result;
    result = exchange_pieces(chunk);
    if (result != kSuccess) return failed(result, "ncclSend and ncclRecv of pieces", nccl());
    result = on_devices(chunk, "averaging",
                        [&](Active& one) { return one.communicator->codec_.average(one.call, chunk); });
    if (result != kSuccess) return result;
    result = gather(chunk);
    if (result != kSuccess) return failed(result, "ncclAllGather of averages", nccl());
    result = on_devices(chunk, "decoding",
                        [&](Active& one) { return one.communicator->codec_.decode(one.call, chunk); });
    if (result != kSuccess) return result;
  }
  return on_devices(0, "cudaEventRecord",
                    [](Active& one) { return one.communicator->leave(one.call.stream); });
}

Result run(std::span<Request> requests) {
  if (const Result result = Running::admit(requests); result != kSuccess) return result;
  std::vector<Request*> waiting;
  for (Request& request : requests) {
    request.compressed = Running::is_admitted(request);
    if (request.compressed) waiting.push_back(&request);
  }
  while (!waiting.empty()) {
    Running round;
    std::vector<Request*> later;
    for (Request* const request : waiting) {
      if (round.has(request->communicator)) {
        later.push_back(request);
      } else if (const Result result = round.start(*request); result != kSuccess) {
        return result;
      }
    }
    if (const Result result = round.run(); result != kSuccess) return result;
    waiting = std::move(later);
  }
  return kSuccess;
}

}  // namespace onebit::nccl
