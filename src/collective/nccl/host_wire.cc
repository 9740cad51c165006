#include "collective/nccl/host_wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"
#include "collective/nccl/levels.h"
#include "collective/nccl/nccl_communicator.h"

namespace onebit::nccl {
namespace {

constexpr std::size_t kLeastMirror = std::size_t{1} << 20;

/// What ranks that send each other a step's messages must agree in.
std::uint32_t check_of(const Step& step) {
  std::uint32_t hash = 2166136261U;
  const auto mix = [&](std::size_t value) {
    for (int shift = 0; shift < 64; shift += 16)
      hash = (hash ^ static_cast<std::uint32_t>(value >> shift & 0xffff)) * 16777619U;
  };
  mix(step.chunk * 2 + static_cast<std::size_t>(step.phase));
  for (const Call& call : step.calls) {
    mix(call.layout.plan().partition_elements() * 2 + static_cast<std::size_t>(call.layout.scatters()));
    mix(static_cast<std::size_t>(call.type) * 16 + static_cast<std::size_t>(call.op));
  }
  return hash;
}

/// Calls copy(span) for each message of step.*which of all ranks but `rank`, those that lie side by side as
/// one.
template <typename Which, typename Copy>
cudaError_t copy_messages(unsigned ranks, unsigned rank, Which which, Copy copy) {
  std::span<std::byte> run;
  for (unsigned peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    const std::span<std::byte> message = which(peer);
    if (message.empty()) continue;
    if (!run.empty() && run.data() + run.size() == message.data()) {
      run = {run.data(), run.size() + message.size()};
      continue;
    }
    if (!run.empty()) {
      if (const cudaError_t error = copy(run); error != cudaSuccess) return error;
    }
    run = message;
  }
  return run.empty() ? cudaSuccess : copy(run);
}

}  // namespace

HostWire::~HostWire() {
  const DeviceGuard guard(device_);
  // Not where set-up has failed.
  const bool is_used = thread_ != nullptr && !mirrors_.empty();
  if (is_used) static_cast<void>(thread_->drain(patience()));
  thread_.reset();
  // The copies from and to the mirrors are behind the messages.
  if (is_used) cudaStreamSynchronize(own_stream_);
}

bool HostWire::reserve(std::size_t staging) {
  if (!mirrors_.empty() && mirrors_.back().in.bytes().size() >= staging) return true;
  const std::size_t bytes = std::bit_ceil(std::max(staging, kLeastMirror));
  Mirrors made{PinnedMemory(bytes), PinnedMemory(bytes)};
  if (made.out.data() == nullptr || made.in.data() == nullptr) return false;
  thread_->add_memory(made.out.bytes(), false);
  thread_->add_memory(made.in.bytes(), true);
  mirrors_.push_back(std::move(made));
  return true;
}

Result HostWire::begin(const Step& step, cudaStream_t stream) {
  const Mirrors& mirrors = mirrors_.back();
  messages_.clear();
  // Ranks that start at different peers do not crowd one of them.
  for (unsigned i = 1; i < ranks_; ++i) {
    const unsigned peer = (rank_ + i) % ranks_;
    const auto in = step.in(peer);
    const auto out = step.out(peer);
    if (!in.empty()) messages_.push_back({peer, false, {mirrored(step, mirrors.in, in), in.size()}});
    if (!out.empty()) messages_.push_back({peer, true, {mirrored(step, mirrors.out, out), out.size()}});
    sent_bytes_ += out.size();
  }
  const auto copy_out = [&](std::span<std::byte> run) {
    return cudaMemcpyAsync(mirrored(step, mirrors.out, run), run.data(), run.size(), cudaMemcpyDeviceToHost,
                           stream);
  };
  cudaError_t error = cudaSuccess;
  if (step.phase == Phase::kPieces) {
    error = copy_messages(
        ranks_, rank_, [&](unsigned peer) { return step.out(peer); }, copy_out);
  } else if (!step.out(rank_).empty()) {
    error = copy_out(step.out(rank_));
  }
  if (error == cudaSuccess) {
    const std::uint32_t job = thread_->post(messages_, check_of(step), true);
    jobs_[step.place()] = job;
    error = words_->signal(stream, job);
  }
  if (error == cudaSuccess) return kSuccess;
  // What peers wait for does not come.
  thread_->abort(Status::error(Code::kSystemError, "CUDA: {}", cudaGetErrorString(error)));
  return failed(error, "copying messages to the host", device_);
}

Result HostWire::await(const Step& step, cudaStream_t stream) {
  const auto copy_in = [&](std::span<std::byte> run) {
    return cudaMemcpyAsync(run.data(), mirrored(step, mirrors_.back().in, run), run.size(),
                           cudaMemcpyHostToDevice, stream);
  };
  cudaError_t error = words_->stop(stream, jobs_[step.place()]);
  if (error == cudaSuccess)
    error = copy_messages(
        ranks_, rank_, [&](unsigned peer) { return step.in(peer); }, copy_in);
  return error == cudaSuccess ? kSuccess : failed(error, "copying messages to the device", device_);
}

bool HostWire::tell(std::span<const std::uint64_t> mine) {
  constexpr std::uint32_t kCheck = 0x4f424e55;
  numbers_.assign(mine.size() * ranks_, 0);
  const auto of = [&](unsigned rank) {
    return std::as_writable_bytes(std::span(numbers_).subspan(rank * mine.size(), mine.size()));
  };
  std::copy(mine.begin(), mine.end(), numbers_.begin() + static_cast<std::ptrdiff_t>(rank_ * mine.size()));
  messages_.clear();
  for (unsigned i = 1; i < ranks_; ++i) {
    const unsigned peer = (rank_ + i) % ranks_;
    messages_.push_back({peer, false, of(peer)});
    messages_.push_back({peer, true, of(rank_)});
  }
  thread_->post(messages_, kCheck, false);
  return true;
}

Status HostWire::hear(std::vector<std::uint64_t>* all) {
  ONEBIT_RETURN_IF_ERROR(thread_->drain(patience()));
  *all = numbers_;
  return Status();
}

void HostWire::leave() {
  constexpr auto kMoment = std::chrono::seconds(2);
  static_cast<void>(thread_->drain(Deadline::after(kMoment)));
}

// ---- set-up ----

/// The wire of one communicator, as far as it is made.
class HostWire::Making {
 public:
  Making(NcclCommunicator& communicator, const Settings& settings) : communicator_(&communicator) {
    status_ = create(settings);
  }
  NcclCommunicator& communicator() const { return *communicator_; }

  /// What the other ranks are to know: whether all is well here, and this rank's handle.
  static constexpr std::size_t kWords = sizeof(transport::Handle) / sizeof(std::uint64_t);
  std::array<std::uint64_t, 1 + kWords> told() const {
    std::array<std::uint64_t, 1 + kWords> words{};
    words[0] = status_.ok();
    if (status_.ok())
      std::memcpy(&words[1], wire_->thread_->handle().bytes.data(), sizeof(transport::Handle));
    return words;
  }
  /// Ends in an error where a rank's is one.
  void hear(std::span<const std::uint64_t> all) {
    const std::size_t each = all.size() / communicator_->ranks();
    std::vector<transport::Handle> handles(communicator_->ranks());
    for (std::size_t rank = 0; rank < handles.size(); ++rank) {
      const std::uint64_t* const words = all.data() + rank * each;
      if (status_.ok() && words[0] == 0) {
        status_ = Status::error(Code::kRemoteError, "{} {} could not", communicator_->options().peers, rank);
      }
      if (each > 1) std::memcpy(handles[rank].bytes.data(), words + 1, handles[rank].bytes.size());
    }
    if (status_.ok() && each > 1) status_ = wire_->thread_->connect(handles);
  }
  /// True when it is connected, or in an error.
  bool step(Deadline deadline) {
    if (!status_.ok() || is_connected_) return true;
    auto connected = wire_->thread_->step();
    status_ = connected.status();
    is_connected_ = connected.ok() && *connected;
    if (status_.ok() && !is_connected_ && deadline.passed()) {
      status_ = Status::error(Code::kTimeout,
                              "no connection within ONEBIT_INIT_TIMEOUT with {}: is the way between the "
                              "machines open for these ports (ONEBIT_PORT_RANGE)?",
                              wire_->thread_->missing());
    }
    return is_connected_ || !status_.ok();
  }
  Status finish() {
    if (status_.ok()) status_ = wire_->thread_->start(*wire_->words_);
    if (!status_.ok()) return status_;
    log(LogLevel::kInfo, "{} {} of {}: messages by {}{}", communicator_->options().peers, wire_->rank_,
        wire_->ranks_, wire_->thread_->transport(),
        wire_->words_->has_memory_operations() ? "" : ", kernels wait for them");
    const DeviceGuard guard(wire_->device_);
    communicator_->set_wire(std::move(wire_));
    return status_;
  }

 private:
  Status create(const Settings& settings) {
    const CommunicatorOptions& options = communicator_->options();
    const DeviceGuard guard(options.device);
    wire_.reset(new HostWire(settings, options.device, communicator_->own_stream(), options.codec.ranks,
                             options.codec.rank));
    ONEBIT_ASSIGN_OR_RETURN(wire_->words_, StreamWords::create(communicator_->own_stream()));
    ONEBIT_ASSIGN_OR_RETURN(wire_->thread_, ExchangeThread::create({settings, options.codec.ranks,
                                                                    options.codec.rank, options.peers}));
    return Status();
  }

  NcclCommunicator* communicator_;
  std::unique_ptr<HostWire> wire_;
  Status status_;
  bool is_connected_ = false;
};

Result HostWire::make(std::span<NcclCommunicator* const> communicators, const Settings& settings) {
  std::vector<Making> all;
  for (NcclCommunicator* const one : communicators)
    all.emplace_back(one->levels() != nullptr ? one->levels()->compressed() : *one, settings);
  // Every rank takes part in both exchanges, whatever has failed on it.
  const auto tell = [&](std::size_t words) {
    std::vector<std::array<std::uint64_t, 1 + Making::kWords>> told;
    for (const Making& one : all) told.push_back(one.told());
    std::vector<Exchange> exchanges;
    for (std::size_t i = 0; i < all.size(); ++i)
      exchanges.push_back({&all[i].communicator(), std::span(told[i]).first(words), nullptr, {}});
    const Result result = exchange(exchanges);
    for (std::size_t i = 0; i < all.size() && result == kSuccess; ++i) all[i].hear(exchanges[i].all);
    return result;
  };
  if (const Result result = tell(1 + Making::kWords); result != kSuccess) return result;
  const Deadline deadline = Deadline::after(settings.init_timeout);
  const auto step = [&](Making& one) { return one.step(deadline); };
  while (std::count_if(all.begin(), all.end(), step) != static_cast<std::ptrdiff_t>(all.size())) {
  }
  if (const Result result = tell(1); result != kSuccess) return result;
  Result result = kSuccess;
  for (Making& one : all) {
    const Status status = one.finish();
    if (status.ok()) continue;
    log(LogLevel::kWarn, "{} {}: no way to carry messages by ONEBIT_TRANSPORT={}: {}",
        one.communicator().options().peers, one.communicator().options().codec.rank, settings.transport,
        status.message());
    result = kSystemError;
  }
  return result;
}

}  // namespace onebit::nccl
