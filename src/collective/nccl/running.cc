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

  /// Takes a batch in. One of several communicators runs on a stream of its own, so that none waits for
  /// another one's ranks.
  Result start(NcclCommunicator& communicator, std::span<Request* const> requests, bool is_one_of_several);
  Result run();
  static cudaError_t add(Active& active, const Request& request);
  /// Calls step(active) for each, its device being current.
  template <typename Step>
  Result on_devices(const char* what, Step step);
  /// Computes `what` of a chunk on the streams of those that have it: by `step` on each codec.
  template <typename Compute>
  Result compute(const char* what, std::size_t chunk, Compute step);
  /// Calls step(wire, step, stream) of those that have the chunk and the phase.
  template <typename Call>
  Result on_wires(Phase phase, std::size_t chunk, Call call);
  Result begin(Phase phase, std::size_t chunk);
  Result await(Phase phase, std::size_t chunk);
  Result encode(std::size_t chunk);
  Result average(std::size_t chunk);
  Result decode(std::size_t chunk);
  static cudaError_t finish(Active& active);
  /// After a failure: the other ranks, which wait for what does not come, are told where the wire can.
  void give_up(Result result);
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
    const void* const buffer = request.buffer == nullptr ? request.send : request.buffer;
    const Identity identity{request.tag, *request.tag == '\0' ? buffer : nullptr, request.shape, request.type,
                            request.op};
    found = communicator.slots_.find(identity);
  }
  if (!found) return cudaErrorMemoryAllocation;
  active.calls.push_back({communicator.layout(request.shape), request.send, request.receive, request.type,
                          request.op, found->residuals, found->start_anew, active.stream});
  ++communicator.statistics_.calls;
  communicator.statistics_.bytes += request.shape.elements(communicator.ranks()) * size_of(request.type);
  return cudaSuccess;
}

Result Running::start(NcclCommunicator& communicator, std::span<Request* const> requests,
                      bool is_one_of_several) {
  if (const Status status = communicator.wire_->status(); !status.ok())
    return failed(status, "a compressed call after a failure");
  const int device = communicator.options_.device;
  const DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
  const cudaStream_t stream = is_one_of_several ? communicator.own_stream_ : requests.front()->stream;
  Active& active = active_.emplace_back(Active{&communicator, {}, stream, {}});
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

template <typename Compute>
Result Running::compute(const char* what, std::size_t chunk, Compute step) {
  return on_devices(what, [&](Active& one) {
    return one.has_chunk(chunk) ? step(one.communicator->codec_, one) : cudaSuccess;
  });
}

template <typename Call>
Result Running::on_wires(Phase phase, std::size_t chunk, Call call) {
  for (Active& one : active_) {
    if (!one.has_chunk(chunk) || (phase == Phase::kAverages && one.scatters())) continue;
    NcclCommunicator& communicator = *one.communicator;
    const int device = communicator.options_.device;
    const DeviceGuard guard(device);
    if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
    const Step step = {communicator.codec_, one.calls, chunk, phase, one.has_chunk(1)};
    if (const Result result = call(*communicator.wire_, step, one.stream); result != kSuccess) return result;
  }
  return kSuccess;
}

Result Running::begin(Phase phase, std::size_t chunk) {
  const auto begin_step = [](Wire& wire, const Step& step, cudaStream_t stream) {
    return wire.begin(step, stream);
  };
  if (const Result result = on_wires(phase, chunk, begin_step); result != kSuccess) return result;
  const Result result = in_group(nccl(), [&] {
    return on_wires(phase, chunk, [&](Wire& wire, const Step& step, cudaStream_t stream) {
      return is_aborted() ? kInvalidUsage : wire.move(step, stream);
    });
  });
  if (result != kSuccess) {
    return failed(result,
                  phase == Phase::kPieces ? "ncclSend and ncclRecv of pieces" : "ncclAllGather of averages",
                  nccl());
  }
  return on_wires(phase, chunk, [](Wire& wire, const Step& step, cudaStream_t) { return wire.begun(step); });
}

Result Running::await(Phase phase, std::size_t chunk) {
  return on_wires(phase, chunk,
                  [](Wire& wire, const Step& step, cudaStream_t stream) { return wire.await(step, stream); });
}

Result Running::encode(std::size_t chunk) {
  const Result result = compute(
      "encoding", chunk, [&](DeviceCodec& codec, Active& one) { return codec.encode(one.calls, chunk); });
  return result == kSuccess ? begin(Phase::kPieces, chunk) : result;
}

Result Running::average(std::size_t chunk) {
  Result result = await(Phase::kPieces, chunk);
  if (result != kSuccess) return result;
  result = compute("averaging", chunk, [&](DeviceCodec& codec, Active& one) {
    return one.scatters() ? codec.reduce(one.calls, chunk) : codec.average(one.calls, chunk);
  });
  return result == kSuccess ? begin(Phase::kAverages, chunk) : result;
}

Result Running::decode(std::size_t chunk) {
  const Result result = await(Phase::kAverages, chunk);
  if (result != kSuccess) return result;
  return compute("decoding", chunk, [&](DeviceCodec& codec, Active& one) {
    return one.scatters() ? cudaSuccess : codec.decode(one.calls, chunk);
  });
}

void Running::give_up(Result result) {
  const Status reason =
      Status::error(Code::kSystemError, "a compressed call: {}", nccl().error_string(result));
  for (const Active& one : active_) one.communicator->wire_->abort(reason);
  // What the streams were given still uses the communicators' memory: the own streams follow it.
  for (Active& one : active_) {
    const DeviceGuard guard(one.communicator->options_.device);
    if (finish(one) == cudaSuccess) continue;
    cudaGetLastError();
    cudaStreamSynchronize(one.stream);  // a stream of another device, say: nothing in it waits for a rank
  }
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
  // While the pieces of a chunk travel, the next one is coded, and the averages of the one before travel.
  Result result = kSuccess;
  for (std::size_t turn = 0; turn < chunks + 2 && result == kSuccess; ++turn) {
    if (turn < chunks) result = encode(turn);
    if (result == kSuccess && turn >= 1 && turn - 1 < chunks) result = average(turn - 1);
    if (result == kSuccess && turn >= 2) result = decode(turn - 2);
  }
  if (result != kSuccess) return result;
  return on_devices("cudaEventRecord", [](Active& one) { return finish(one); });
}

Result Running::run_all(RequestQueues queues) {
  while (!queues.empty()) {
    Running round;
    const bool are_several = queues.size() > 1;
    for (auto& [communicator, queue] : queues) {
      const std::size_t size = communicator->first_batch(queue, communicator->staging_);
      const Result result = round.start(*communicator, std::span(queue).first(size), are_several);
      if (result != kSuccess) return result;
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(size));
    }
    if (const Result result = round.run(); result != kSuccess) {
      round.give_up(result);
      return result;
    }
    std::erase_if(queues, [](const auto& entry) { return entry.second.empty(); });
  }
  return kSuccess;
}

Result run_flat(std::span<Request> requests) {
  const Result result = Admission::admit(requests);
  return result == kSuccess ? Running::run_all(Admission::queues(requests)) : result;
}

}  // namespace onebit::nccl
