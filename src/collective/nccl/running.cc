// The phases of compressed calls, for all communicators that one thread drives at once.
#include <algorithm>
#include <span>

#include "collective/nccl/admission.h"
#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"
#include "collective/nccl/running.h"

namespace onebit::nccl {

/// One batch of each communicator, on its way through the phases.
class Running {
 public:
  static Result run_all(RequestQueues queues);

 private:
  struct Active {
    NcclCommunicator* communicator;
    std::vector<Call> calls;
    cudaStream_t stream;
    std::vector<cudaStream_t> others;  ///< that requests of the batch came with

    bool scatters() const { return calls.front().layout.scatters(); }
    bool has_chunk(std::size_t chunk) const { return chunk < calls.front().layout.plan().chunks(); }
  };

  Result start(NcclCommunicator& communicator, std::span<Request* const> requests);
  Result run();
  static cudaError_t add(Active& active, const Request& request);
  /// Calls step(active) for each, its device being current.
  template <typename Step>
  Result on_devices(const char* what, Step step);
  Result exchange_pieces(std::size_t chunk);
  Result gather(std::size_t chunk);
  Result run_chunk(std::size_t chunk);
  static cudaError_t finish(Active& active);
  bool is_aborted() const {
    return std::any_of(active_.begin(), active_.end(),
                       [](const Active& one) { return one.communicator->is_aborted_.load(); });
  }
  const Functions& nccl() const { return active_.front().communicator->options_.nccl; }

  std::vector<Active> active_;
};

cudaError_t Running::add(Active& active, const Request& request) {
  NcclCommunicator& communicator = *active.communicator;
  const auto is_known = [&](cudaStream_t stream) {
    return stream == active.stream ||
           std::find(active.others.begin(), active.others.end(), stream) != active.others.end();
  };
  if (!is_known(request.stream)) {
    if (const cudaError_t error = communicator.join(active.stream, request.stream); error != cudaSuccess)
      return error;
    active.others.push_back(request.stream);
  }
  std::optional<ResidualSlots::Found> found;
  if (request.residuals != nullptr) {
    found = {request.residuals, false};
  } else {
    const Identity identity{request.tag, *request.tag == '\0' ? request.send : nullptr, request.shape,
                            request.type, request.op};
    found = communicator.slots_.find(identity);
  }
  if (!found) return cudaErrorMemoryAllocation;
  active.calls.push_back({communicator.layout(request.shape), request.send, request.receive, request.type,
                          request.op, found->residuals, found->start_anew, active.stream});
  ++communicator.statistics_.calls;
  communicator.statistics_.bytes += request.shape.elements(communicator.ranks()) * size_of(request.type);
  return cudaSuccess;
}

Result Running::start(NcclCommunicator& communicator, std::span<Request* const> requests) {
  const int device = communicator.options_.device;
  const DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
  Active& active = active_.emplace_back(Active{&communicator, {}, requests.front()->stream, {}});
  ++communicator.statistics_.batches;
  cudaError_t error = communicator.enter(active.stream);
  for (const Request* const request : requests) {
    if (error == cudaSuccess) error = add(active, *request);
  }
  return error == cudaSuccess ? kSuccess : failed(error, "starting a compressed call", device);
}

template <typename Step>
Result Running::on_devices(const char* what, Step step) {
  for (Active& one : active_) {
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
      if (!one.has_chunk(chunk)) continue;
      NcclCommunicator& communicator = *one.communicator;
      const CommunicatorOptions& options = communicator.options_;
      for (unsigned peer = 0; peer < options.codec.ranks; ++peer) {
        if (peer == options.codec.rank) continue;
        const int number = static_cast<int>(peer);
        const auto out = communicator.codec_.outgoing(one.calls, chunk, peer);
        if (!out.empty()) {
          const Result result = nccl().send(out.data(), out.size(), kUint8, number, options.comm, one.stream);
          if (result != kSuccess) return result;
        }
        const auto in = communicator.codec_.incoming(one.calls, chunk, peer);
        if (!in.empty()) {
          const Result result =
              nccl().receive(in.data(), in.size(), kUint8, number, options.comm, one.stream);
          if (result != kSuccess) return result;
        }
        communicator.statistics_.sent_bytes += out.size();
      }
    }
    return kSuccess;
  });
}

Result Running::gather(std::size_t chunk) {
  const auto gathers = [&](const Active& one) { return one.has_chunk(chunk) && !one.scatters(); };
  if (std::none_of(active_.begin(), active_.end(), gathers)) return kSuccess;
  return in_group(nccl(), [&] {
    if (is_aborted()) return kInvalidUsage;
    for (Active& one : active_) {
      if (!gathers(one)) continue;
      NcclCommunicator& communicator = *one.communicator;
      const CommunicatorOptions& options = communicator.options_;
      const std::size_t stride = DeviceCodec::stride(one.calls, chunk);
      std::byte* const all = communicator.codec_.gathered();
      const Result result =
          nccl().all_gather(all + options.codec.rank * stride, all, stride, kUint8, options.comm, one.stream);
      if (result != kSuccess) return result;
      communicator.statistics_.sent_bytes += (options.codec.ranks - 1) * stride;
    }
    return kSuccess;
  });
}

Result Running::run_chunk(std::size_t chunk) {
  const auto step = [&](const char* what, auto allreduce, auto reduce_scatter) {
    return on_devices(what, [&](Active& one) {
      if (!one.has_chunk(chunk)) return cudaSuccess;
      DeviceCodec& codec = one.communicator->codec_;
      return one.scatters() ? reduce_scatter(codec, one.calls) : allreduce(codec, one.calls);
    });
  };
  const auto encode = [&](DeviceCodec& codec, Calls calls) { return codec.encode(calls, chunk); };
  const auto average = [&](DeviceCodec& codec, Calls calls) { return codec.average(calls, chunk); };
  const auto decode = [&](DeviceCodec& codec, Calls calls) { return codec.decode(calls, chunk); };
  const auto reduce = [&](DeviceCodec& codec, Calls calls) { return codec.reduce(calls, chunk); };
  const auto nothing = [](DeviceCodec&, Calls) { return cudaSuccess; };
  Result result = step("encoding", encode, encode);
  if (result != kSuccess) return result;
  result = exchange_pieces(chunk);
  if (result != kSuccess) return failed(result, "ncclSend and ncclRecv of pieces", nccl());
  result = step("averaging", average, reduce);
  if (result != kSuccess) return result;
  result = gather(chunk);
  if (result != kSuccess) return failed(result, "ncclAllGather of averages", nccl());
  return step("decoding", decode, nothing);
}

cudaError_t Running::finish(Active& active) {
  cudaError_t error = active.communicator->leave(active.stream);
  for (const cudaStream_t other : active.others) {
    if (error == cudaSuccess) error = cudaStreamWaitEvent(other, active.communicator->last_event_, 0);
  }
  return error;
}

Result Running::run() {
  std::size_t chunks = 0;
  for (const Active& one : active_) chunks = std::max(chunks, one.calls.front().layout.plan().chunks());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (const Result result = run_chunk(chunk); result != kSuccess) return result;
  }
  return on_devices("cudaEventRecord", [](Active& one) { return finish(one); });
}

Result Running::run_all(RequestQueues queues) {
  while (!queues.empty()) {
    Running round;
    for (auto& [communicator, queue] : queues) {
      const std::size_t size = communicator->first_batch(queue, communicator->staging_);
      const Result result = round.start(*communicator, std::span(queue).first(size));
      if (result != kSuccess) return result;
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(size));
    }
    if (const Result result = round.run(); result != kSuccess) return result;
    std::erase_if(queues, [](const auto& entry) { return entry.second.empty(); });
  }
  return kSuccess;
}

Result run_flat(std::span<Request> requests) {
  const Result result = Admission::admit(requests);
  return result == kSuccess ? Running::run_all(Admission::queues(requests)) : result;
}

}  // namespace onebit::nccl
