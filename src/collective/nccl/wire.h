// What carries the messages of a communicator's compressed calls to the other ranks, in the order of streams.
//
// A step is one exchange of a batch's chunk: pieces to the owners of their partitions, or averages to all.
// The ranks of a communicator begin the same steps in the same order. A step is begun behind what a stream
// has been given; its messages travel while that stream goes on, and are there behind `await`. A chunk's
// second step begins when its first has been awaited, and a chunk's first when the chunk two before it is
// over, so that what they move has two places that take turns. Nothing here waits on the host. One thread at
// a time, with the communicator's device current, but for `abort`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/nccl/device_codec.h"
#include "collective/nccl/nccl_abi.h"

namespace onebit::nccl {

enum class Phase : std::uint8_t { kPieces, kAverages };

/// What a step moves, in the codec's staging memory.
struct Step {
  const DeviceCodec& codec;
  Calls calls;
  std::size_t chunk;
  Phase phase;
  bool overlaps;  ///< the stream has other work before it awaits the step

  /// Messages to and from a rank; empty ones are not sent.
  std::span<std::byte> out(unsigned peer) const {
    return phase == Phase::kPieces ? codec.outgoing(calls, chunk, peer)
                                   : codec.averaged(calls, chunk, codec.rank());
  }
  std::span<std::byte> in(unsigned peer) const {
    return phase == Phase::kPieces ? codec.incoming(calls, chunk, peer) : codec.averaged(calls, chunk, peer);
  }
  /// Which of a wire's steps under way, from 0 to kSteps - 1.
  std::size_t place() const { return 2 * static_cast<std::size_t>(phase) + chunk % DeviceCodec::kSets; }
  static constexpr std::size_t kSteps = 2 * DeviceCodec::kSets;
};

class Wire {
 public:
  virtual ~Wire() = default;

  /// Makes what it needs for staging memory of this size. False: no memory is left.
  virtual bool reserve(std::size_t /*staging*/) { return true; }
  /// Begins a step, in three parts: `move` of all communicators of a thread is called in one group of NCCL's.
  virtual Result begin(const Step& step, cudaStream_t stream) = 0;
  virtual Result move(const Step& /*step*/, cudaStream_t /*stream*/) { return kSuccess; }
  virtual Result begun(const Step& /*step*/) { return kSuccess; }
  /// What `stream` is given from now on finds the step's messages.
  virtual Result await(const Step& step, cudaStream_t stream) = 0;

  /// Tells the other ranks numbers, as many as they tell; `hear` waits for theirs, rank after rank. False:
  /// not by this wire.
  virtual bool tell(std::span<const std::uint64_t> /*mine*/) { return false; }
  virtual Status hear(std::vector<std::uint64_t>* /*all*/) { return Status(); }

  /// What has failed; from then on nothing more is moved, and what has not come reads as NaN. Any thread.
  virtual Status status() const { return Status(); }
  /// Ends what is under way, as a failure. Any thread.
  virtual void abort(const Status& /*reason*/) {}
  /// The process is about to end, and with it memory that it uses: waits a moment for what is under way.
  virtual void leave() {}

  /// Bytes that were sent.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 protected:
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace onebit::nccl
