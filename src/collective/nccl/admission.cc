#include "collective/nccl/admission.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"

namespace onebit::nccl {
namespace {

/// Staging memory grows for batches in steps from this many bytes, doubled each time, and no batch has more
/// than the most.
constexpr std::size_t kLeastStaging = std::size_t{1} << 20;
constexpr std::size_t kMostStaging = std::size_t{64} << 20;

}  // namespace

Result exchange(std::span<Exchange> exchanges) {
  if (exchanges.empty()) return kSuccess;
  const auto tell = [](const Exchange& one) { return one.communicator->wire_->tell(one.mine); };
  if (tell(exchanges.front())) {  // then the others are told by their wires, too
    std::for_each(exchanges.begin() + 1, exchanges.end(), tell);
    for (Exchange& one : exchanges) {
      const Status status = one.communicator->wire_->hear(&one.all);
      if (!status.ok()) return failed(status, "what ranks tell each other");
    }
    return kSuccess;
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
  // On a stream of each one's own, so that none waits for another one's ranks.
  const auto stream = [](const Exchange& one) { return one.communicator->own_stream_; };
  Result result = on_each("telling the other ranks", [&](Exchange& one) {
    const cudaError_t error =
        one.stream == nullptr ? cudaSuccess : one.communicator->join(stream(one), one.stream);
    if (error != cudaSuccess) return error;
    return cudaMemcpyAsync(own(one), one.mine.data(), one.mine.size_bytes(), cudaMemcpyHostToDevice,
                           stream(one));
  });
  if (result != kSuccess) return result;
  const Functions& nccl = exchanges.front().communicator->options_.nccl;
  result = in_group(nccl, [&] {
    if (is_aborted()) return kInvalidUsage;
    for (Exchange& one : exchanges) {
      const NcclCommunicator& communicator = *one.communicator;
      const Result each = nccl.all_gather(own(one), communicator.exchanged_.data(), one.mine.size(), kUint64,
                                          communicator.options_.comm, stream(one));
      if (each != kSuccess) return each;
    }
    return kSuccess;
  });
  if (result != kSuccess) {
    // The copies above read the caller's memory.
    for (Exchange& one : exchanges) cudaStreamSynchronize(stream(one));
    return failed(result, "ncclAllGather of what ranks tell each other", nccl);
  }
  result = on_each("hearing the other ranks", [&](Exchange& one) {
    one.all.resize(one.mine.size() * one.communicator->ranks());
    const cudaError_t error =
        cudaMemcpyAsync(one.all.data(), one.communicator->exchanged_.data(),
                        one.all.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost, stream(one));
    return error != cudaSuccess ? error : cudaStreamSynchronize(stream(one));
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

/// What the ranks of a communicator are asked: whether each has memory for a shape, or, without one, for the
/// messages of a batch.
struct Admission::Question {
  NcclCommunicator* communicator;
  std::optional<Shape> shape;
  std::size_t staging;
  cudaStream_t stream;
};

Result Admission::ask(std::span<const Question> questions) {
  std::vector<std::uint64_t> answers;
  std::vector<Exchange> exchanges;
  answers.reserve(questions.size());  // exchanges look at them
  for (const Question& question : questions) {
    NcclCommunicator& communicator = *question.communicator;
    const int device = communicator.options_.device;
    const DeviceGuard guard(device);
    if (guard.error() != cudaSuccess) return failed(guard.error(), "cudaSetDevice", device);
    const bool has_memory =
        question.shape
            ? communicator.codec_.reserve(communicator.layout(*question.shape)) &&
                  communicator.wire_->reserve(question.staging) &&
                  communicator.slots_.reserve(*question.shape)
            : communicator.codec_.reserve(question.staging) && communicator.wire_->reserve(question.staging);
    if (!has_memory) cudaGetLastError();
    exchanges.push_back({&communicator, {&answers.emplace_back(has_memory), 1}, question.stream, {}});
  }
  if (const Result result = exchange(exchanges); result != kSuccess) return result;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    NcclCommunicator& communicator = *question.communicator;
    const std::vector<std::uint64_t>& all = exchanges[i].all;
    const auto lacking = std::find(all.begin(), all.end(), std::uint64_t{0});
    if (question.shape) communicator.admitted_[*question.shape] = lacking == all.end();
    if (lacking == all.end()) {
      communicator.staging_ = std::max(communicator.staging_, question.staging);
    } else if (question.shape) {
      log(LogLevel::kWarn,
          "{} {} has no device memory left to compress {} of {} elements: they go the exact way on all of "
          "them",
          communicator.options_.peers, lacking - all.begin(),
          question.shape->scatters ? "reduce-scatters" : "allreduces", question.shape->count);
    }
  }
  return kSuccess;
}

Result Admission::admit_shapes(std::span<Request> requests) {
  // A communicator's exchanges are one after the other, those of different ones together.
  for (;;) {
    std::vector<Question> questions;
    for (const Request& request : requests) {
      NcclCommunicator& communicator = *request.communicator;
      const auto is_its = [&](const Question& one) { return one.communicator == &communicator; };
      if (communicator.admitted_.contains(request.shape) ||
          std::any_of(questions.begin(), questions.end(), is_its)) {
        continue;
      }
      questions.push_back(
          {&communicator, request.shape, communicator.layout(request.shape).staging_bytes(), request.stream});
    }
    if (questions.empty()) return kSuccess;
    if (const Result result = ask(questions); result != kSuccess) return result;
  }
}

RequestQueues Admission::queues(std::span<Request> requests) {
  RequestQueues queues;
  for (Request& request : requests) {
    if (!request.compressed) continue;
    const auto is_its = [&](const auto& queue) { return queue.first == request.communicator; };
    auto queue = std::find_if(queues.begin(), queues.end(), is_its);
    if (queue == queues.end()) queue = queues.insert(queue, {request.communicator, {}});
    queue->second.push_back(&request);
  }
  return queues;
}

Result Admission::admit_batches(std::span<Request> requests) {
  std::vector<Question> questions;
  for (const auto& [communicator, queue] : queues(requests)) {
    std::size_t wanted = 0;
    for (std::span<Request* const> rest = queue; !rest.empty();) {
      const std::size_t size = communicator->first_batch(rest, kMostStaging);
      std::size_t staging = 0;
      for (const Request* const request : rest.first(size))
        staging += communicator->layout(request->shape).staging_bytes();
      if (size > 1) wanted = std::max(wanted, staging);
      rest = rest.subspan(size);
    }
    if (wanted <= std::max(communicator->staging_, communicator->staging_asked_)) continue;
    wanted = std::bit_ceil(std::max(wanted, kLeastStaging));
    communicator->staging_asked_ = wanted;
    questions.push_back({communicator, std::nullopt, wanted, queue.front()->stream});
  }
  return questions.empty() ? kSuccess : ask(questions);
}

Result Admission::admit(std::span<Request> requests) {
  if (const Result result = admit_shapes(requests); result != kSuccess) return result;
  for (Request& request : requests) {
    request.compressed = request.communicator->admitted_.at(request.shape);
  }
  return admit_batches(requests);
}

}  // namespace onebit::nccl
