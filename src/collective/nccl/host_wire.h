// Messages by one of our own transports, for buffers of a device: packed bytes are copied to pinned memory,
// sent and received by a thread (ExchangeThread), and copied back.
//
// A step on the caller's stream is: copy what goes out to its mirror, tell the thread; and in `await` stop
// until the thread says that all has come, copy that in. No host function runs in the stream, and the caller
// never waits. What goes out and what comes in have mirrors of their own: after a failure nothing writes to
// the second any more, so it keeps the NaNs that it was filled with, and so do results. Memory that grows
// leaves its old mirrors in place until the end, since what is under way may use them. Threads: as Wire's.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "collective/nccl/exchange_thread.h"
#include "collective/nccl/wire.h"

namespace onebit::nccl {

class NcclCommunicator;

class HostWire final : public Wire {
 public:
  /// Makes one for each communicator, in the place of NCCL's; for one with levels, between its nodes. They
  /// exchange addresses by NCCL. Collective over all ranks of each: all get it, or all an error.
  static Result make(std::span<NcclCommunicator* const> communicators, const Settings& settings);
  HostWire(const HostWire&) = delete;
  HostWire& operator=(const HostWire&) = delete;
  /// Waits for its steps, for a bounded time, and for its streams.
  ~HostWire() override;

  bool reserve(std::size_t staging) override;
  Result begin(const Step& step, cudaStream_t stream) override;
  Result await(const Step& step, cudaStream_t stream) override;
  bool tell(std::span<const std::uint64_t> mine) override;
  Status hear(std::vector<std::uint64_t>* all) override;
  Status status() const override { return thread_->status(); }
  void abort(const Status& reason) override { thread_->abort(reason); }
  void leave() override;

 private:
  class Making;
  struct Mirrors {
    PinnedMemory out, in;
  };
  HostWire(const Settings& settings, int device, cudaStream_t own_stream, unsigned ranks, unsigned rank)
      : settings_(settings), device_(device), own_stream_(own_stream), ranks_(ranks), rank_(rank) {}
  /// For all that was posted: longer than the thread's own, which says who is late.
  Deadline patience() const { return Deadline::after(2 * settings_.timeout); }
  std::byte* mirrored(const Step& step, const PinnedMemory& mirror, std::span<std::byte> message) const {
    return mirror.data() + (message.data() - step.codec.staging().data());
  }

  const Settings settings_;
  const int device_;
  const cudaStream_t own_stream_;  ///< the communicator's: it follows its last call
  const unsigned ranks_, rank_;
  std::vector<Mirrors> mirrors_;  ///< the last are in use
  std::unique_ptr<StreamWords> words_;
  std::unique_ptr<ExchangeThread> thread_;
  std::array<std::uint32_t, Step::kSteps> jobs_{};  ///< of steps under way
  std::vector<Message> messages_;                   ///< of a step that begins
  std::vector<std::uint64_t> numbers_;              ///< that ranks tell each other
};

}  // namespace onebit::nccl
