// A communicator of the stand-in: one rank's end of a segment.
//
// It is made in steps, none of which waits, so that one thread can make several at once: a blocking one is
// stepped until it is ready, a non-blocking one by ncclCommGetAsyncError. Its operations run in the order in
// which they were issued. Handles are checked: a communicator that was destroyed is an argument error.
// Threads: as NCCL's; abort and the asynchronous error from any.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "cuda_cpu/nccl/segment.h"

namespace onebit::nccl_stand_in {

/// How long a rank waits for others without progress: CUDA_CPU_NCCL_TIMEOUT, seconds.
std::chrono::milliseconds patience();

/// Keeps the message for ncclGetLastError (and writes it, with NCCL_DEBUG set); gives `result` back.
ncclResult_t fail(ncclResult_t result, const std::string& message);
const char* last_error();

/// ncclRedOpCreatePreMulSum.
struct PremultipliedSum {
  bool in_use = false;
  ncclDataType_t type = ncclFloat32;
  const void* device_scalar = nullptr;  ///< null: `scalar`
  double scalar = 0;
};

class Communicator;
using CommunicatorPointer = std::shared_ptr<Communicator>;

class Communicator {
 public:
  /// Begins to make rank `rank` of `ranks` on the current device. An error leaves `made` alone.
  static ncclResult_t create(int ranks, const std::string& name, int rank, bool blocking,
                             CommunicatorPointer* made);
  /// Begins to make a part of `parent`. A rank without a colour takes part as well, and gets no handle.
  static CommunicatorPointer split(const CommunicatorPointer& parent, int color, int key, bool blocking);
  /// From now on `of` finds it.
  static ncclComm_t handle_of(const CommunicatorPointer& communicator);
  /// Null when the handle is none.
  static CommunicatorPointer of(ncclComm_t handle);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  Segment& segment() const { return *segment_; }
  bool alive(int rank) const { return Segment::alive(lock_, rank); }

  /// Goes on with what is under way. ncclInProgress while that, or what a non-blocking call left to do, is
  /// not done.
  ncclResult_t step();
  /// Steps all until they are ready. ncclSystemError past the deadline.
  static ncclResult_t finish(const std::vector<CommunicatorPointer>& communicators);
  /// Whether operations may be issued.
  bool ready() const { return stage_ == Stage::kReady && deferred_.empty(); }
  /// For a non-blocking communicator: work that the next step does.
  void defer(std::function<ncclResult_t()> work) { deferred_.push_back(std::move(work)); }

  /// No further operation runs, the one that does ends.
  void abort() { aborted_ = true; }
  /// The first failure of an operation; it and later ones end without their result.
  void break_off(ncclResult_t why);
  bool broken() const { return aborted_ || error_ != ncclSuccess; }
  ncclResult_t error() const { return error_; }
  /// Waits until all that was issued has run.
  ncclResult_t drain();
  /// The handle is no longer one.
  static void forget(ncclComm_t handle);

  // The turn of each operation. Those of a captured graph take none: their order is the graph's.
  std::uint64_t take_number() { return issued_++; }
  void wait_for_turn(std::uint64_t number);
  void end_turn(std::uint64_t number) { finished_ = number + 1; }
  /// Keeps what a graph may replay for as long as the communicator lives.
  void keep(std::shared_ptr<void> job) { kept_.push_back(std::move(job)); }
  char* edge() { return &edge_; }

  std::vector<PremultipliedSum>& operators() { return operators_; }

 private:
  enum class Stage : std::uint8_t { kPublish, kCollect, kAttach, kAwaitOthers, kReady };
  Communicator() = default;
  ncclResult_t step_split();
  ncclResult_t attach();

  std::string name_;
  int rank_ = 0;
  int ranks_ = 0;
  int device_ = 0;
  bool blocking_ = true;
  Stage stage_ = Stage::kAttach;
  std::shared_ptr<Segment> segment_;
  UniqueFd lock_;
  // Of a split under way.
  CommunicatorPointer parent_;
  int color_ = 0;
  int key_ = 0;
  int number_ = 0;  ///< of the parent's splits, from 1
  int splits_ = 0;

  std::deque<std::function<ncclResult_t()>> deferred_;
  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::uint64_t issued_ = 0;
  std::atomic<std::uint64_t> finished_{0};
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<PremultipliedSum> operators_;
  char edge_ = 0;
};

}  // namespace onebit::nccl_stand_in
