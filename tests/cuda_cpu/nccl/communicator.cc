#include "cuda_cpu/nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/waiting.h"

namespace onebit::nccl_stand_in {
namespace {

constexpr useconds_t kPoll = 50;
thread_local std::string error_text;

/// The communicators that exist. Not behind a lock of the standard library, which would order the ranks'
/// threads in the eyes of the thread sanitizer.
struct Handles {
  cuda_cpu::Mutex mutex;
  std::unordered_map<ncclComm_t, CommunicatorPointer> all;
  static Handles& instance() {
    static Handles* const handles = new Handles;
    return *handles;
  }
};

}  // namespace

std::chrono::milliseconds patience() {
  static const unsigned seconds = cuda_cpu::number_from_environment("CUDA_CPU_NCCL_TIMEOUT", 60, 1, 3600);
  return std::chrono::seconds(seconds);
}

ncclResult_t fail(ncclResult_t result, const std::string& message) {
  error_text = "stand-in for NCCL: " + message;
  if (std::getenv("NCCL_DEBUG") != nullptr) std::fprintf(stderr, "%s\n", error_text.c_str());
  return result;
}
const char* last_error() {
  return error_text.c_str();
}

ncclResult_t Communicator::create(int ranks, const std::string& name, int rank, bool blocking,
                                  CommunicatorPointer* made) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) {
    return fail(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                         "; the stand-in has up to " + std::to_string(kMaxRanks));
  }
  const cuda_cpu::Unobserved quiet;
  CommunicatorPointer communicator(new Communicator);
  if (::cudaGetDevice(&communicator->device_) != cudaSuccess)
    return fail(ncclUnhandledCudaError, "no device");
  communicator->name_ = name;
  communicator->rank_ = rank;
  communicator->ranks_ = ranks;
  communicator->blocking_ = blocking;
  if (const ncclResult_t result = communicator->attach(); result != ncclSuccess) return result;
  *made = std::move(communicator);
  return ncclSuccess;
}

CommunicatorPointer Communicator::split(const CommunicatorPointer& parent, int color, int key,
                                        bool blocking) {
  const cuda_cpu::Unobserved quiet;
  CommunicatorPointer communicator(new Communicator);
  communicator->device_ = parent->device_;
  communicator->blocking_ = blocking;
  communicator->stage_ = Stage::kPublish;
  communicator->parent_ = parent;
  communicator->color_ = color;
  communicator->key_ = key;
  communicator->number_ = ++parent->splits_;
  return communicator;
}

ncclComm_t Communicator::handle_of(const CommunicatorPointer& communicator) {
  const cuda_cpu::Unobserved quiet;
  const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
  Handles& handles = Handles::instance();
  const std::lock_guard lock(handles.mutex);
  handles.all[handle] = communicator;
  return handle;
}

CommunicatorPointer Communicator::of(ncclComm_t handle) {
  Handles& handles = Handles::instance();
  const std::lock_guard lock(handles.mutex);
  const auto found = handles.all.find(handle);
  return found == handles.all.end() ? nullptr : found->second;
}

void Communicator::forget(ncclComm_t handle) {
  const cuda_cpu::Unobserved quiet;
  CommunicatorPointer last;
  Handles& handles = Handles::instance();
  const std::lock_guard lock(handles.mutex);
  if (const auto found = handles.all.find(handle); found != handles.all.end()) {
    last = std::move(found->second);
    handles.all.erase(found);
  }
}

ncclResult_t Communicator::attach() {
  segment_ = Segment::open("/onebit-nccl-stand-in-" + name_, ranks_);
  if (segment_ != nullptr) lock_ = segment_->attach(rank_);
  if (!lock_) {
    const std::string reason = std::strerror(errno);
    return fail(ncclSystemError, "rank " + std::to_string(rank_) + " cannot join " + name_ + ": " + reason +
                                     " (is the rank taken?)");
  }
  stage_ = Stage::kAwaitOthers;
  return ncclSuccess;
}

ncclResult_t Communicator::step_split() {
  Board& board = parent_->segment().board();
  if (stage_ == Stage::kPublish) {
    // The colours of the split before must have been read.
    if (board.collected.load() != (number_ - 1) * parent_->ranks()) return ncclInProgress;
    board.choices[parent_->rank()].color = color_;
    board.choices[parent_->rank()].key = key_;
    ++board.published;
    stage_ = Stage::kCollect;
  }
  if (stage_ == Stage::kCollect) {
    if (board.published.load() != number_ * parent_->ranks()) return ncclInProgress;
    std::vector<std::pair<int, int>> members;  // key, rank of the parent
    for (int i = 0; i < parent_->ranks(); ++i) {
      if (board.choices[i].color == color_) members.emplace_back(board.choices[i].key.load(), i);
    }
    ++board.collected;
    std::sort(members.begin(), members.end());
    const auto own = std::find(members.begin(), members.end(), std::pair(key_, parent_->rank()));
    name_ = parent_->name() + "." + std::to_string(number_) + "." + std::to_string(color_);
    ranks_ = static_cast<int>(members.size());
    rank_ = static_cast<int>(own - members.begin());
    parent_ = nullptr;
    if (color_ == NCCL_SPLIT_NOCOLOR) {
      stage_ = Stage::kReady;
      return ncclSuccess;
    }
    stage_ = Stage::kAttach;
  }
  return attach();
}

ncclResult_t Communicator::step() {
  if (broken()) return error_;
  if (stage_ <= Stage::kAttach) {
    if (const ncclResult_t result = step_split(); result != ncclSuccess) return result;
  }
  if (stage_ == Stage::kAwaitOthers) {
    if (!segment_->complete()) return ncclInProgress;
    stage_ = Stage::kReady;
  }
  if (deferred_.empty()) return ncclSuccess;
  // What a non-blocking call left is done now, and that is seen at the next call.
  while (!deferred_.empty()) {
    const auto work = std::move(deferred_.front());
    deferred_.pop_front();
    if (const ncclResult_t result = work(); result != ncclSuccess) {
      break_off(result);
      return result;
    }
  }
  return ncclInProgress;
}

ncclResult_t Communicator::finish(const std::vector<CommunicatorPointer>& communicators) {
  const Deadline deadline = Deadline::after(patience());
  std::vector<CommunicatorPointer> waiting = communicators;
  for (;;) {
    std::vector<CommunicatorPointer> still;
    for (const CommunicatorPointer& communicator : waiting) {
      const ncclResult_t result = communicator->step();
      if (result == ncclInProgress) {
        still.push_back(communicator);
      } else if (result != ncclSuccess) {
        return result;
      }
    }
    if (still.empty()) return ncclSuccess;
    if (deadline.passed()) {
      return fail(ncclSystemError, "rank " + std::to_string(still.front()->rank()) + " of " +
                                       still.front()->name() +
                                       ": not all ranks came (CUDA_CPU_NCCL_TIMEOUT)");
    }
    waiting = std::move(still);
    ::usleep(kPoll);
  }
}

void Communicator::break_off(ncclResult_t why) {
  ncclResult_t none = ncclSuccess;
  error_.compare_exchange_strong(none, why);
}

void Communicator::wait_for_turn(std::uint64_t number) {
  while (finished_ != number && !broken()) ::usleep(kPoll);
}

ncclResult_t Communicator::drain() {
  const Deadline deadline = Deadline::after(patience());
  while (finished_ != issued_ && !broken()) {
    if (deadline.passed()) {
      return fail(ncclInternalError,
                  name_ + " still has work whose stream does not come to it (CUDA_CPU_NCCL_TIMEOUT)");
    }
    ::usleep(kPoll);
  }
  return ncclSuccess;
}

}  // namespace onebit::nccl_stand_in
