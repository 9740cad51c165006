#include "cuda_cpu/runtime/capture.h"

#include <algorithm>
#include <utility>

#include "cuda_cpu/runtime/thread_state.h"

namespace onebit::cuda_cpu {
namespace {

std::atomic<int> global_captures{0};
/// The captures in another mode than relaxed that the calling thread has begun; those that have ended expire.
thread_local std::vector<std::weak_ptr<Capture>> own_captures;

}  // namespace

cudaError_t Capture::begin(const StreamPointer& origin, cudaStreamCaptureMode mode) {
  if (origin->legacy()) return cudaErrorStreamCaptureUnsupported;
  if (origin->capture() != nullptr) return cudaErrorIllegalState;
  const std::shared_ptr<Capture> capture(new Capture(mode));
  capture->members_.push_back({origin, 0, true});
  origin->set_capture(capture);
  if (mode != cudaStreamCaptureModeRelaxed) own_captures.push_back(capture);
  if (mode == cudaStreamCaptureModeGlobal) ++global_captures;
  return cudaSuccess;
}

std::vector<Capture::Member>::iterator Capture::member(const StreamPointer& stream) {
  return std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.stream == stream; });
}

cudaError_t Capture::add(const StreamPointer& stream, Work work) {
  if (!valid_) return cudaErrorStreamCaptureInvalidated;
  operations_.push_back(std::move(work));
  const auto here = member(stream);
  ++here->operations;
  here->joined_back = false;
  return cudaSuccess;
}

void Capture::join(const std::shared_ptr<Capture>& capture, const StreamPointer& stream,
                   const StreamPointer& from, std::size_t operations) {
  if (capture->member(stream) == capture->members_.end()) {
    stream->set_capture(capture);
    capture->members_.push_back({stream, 0, false});
  }
  capture->member(stream)->joined_back = false;
  const auto source = capture->member(from);
  if (from != stream && source->operations == operations) source->joined_back = true;
}

std::size_t Capture::operations_of(const StreamPointer& stream) const {
  return const_cast<Capture*>(this)->member(stream)->operations;
}

cudaError_t Capture::end(const StreamPointer& stream) {
  if (members_.front().stream != stream) return cudaErrorStreamCaptureUnmatched;
  members_.front().joined_back = true;
  const bool joined =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.joined_back; });
  for (const Member& m : members_) m.stream->set_capture(nullptr);
  members_.clear();
  if (mode_ == cudaStreamCaptureModeGlobal) --global_captures;
  own_captures.erase(std::remove_if(own_captures.begin(), own_captures.end(),
                                    [this](const auto& own) {
                                      const auto locked = own.lock();
                                      return locked == nullptr || locked.get() == this;
                                    }),
                     own_captures.end());
  if (!valid_) return cudaErrorStreamCaptureInvalidated;
  return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t refuse_in_capture() {
  const cudaStreamCaptureMode mode = thread_state().capture_mode;
  if (mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool refused = mode == cudaStreamCaptureModeGlobal && global_captures > 0;
  for (const auto& own : own_captures) {
    if (const auto capture = own.lock()) {
      capture->invalidate();
      refused = true;
    }
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace onebit::cuda_cpu
