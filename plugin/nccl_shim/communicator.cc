#include "communicator.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "api/tags.h"
#include "base/log.h"

namespace onebit::shim {
namespace {

/// How rules see the tag of a call that has none.
constexpr std::string_view kUntagged = "untagged";

const ShimSettings& settings() {
  return *shim_settings();
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(const RealNccl* real, nccl::Comm comm,
                                                           Making making) {
  std::shared_ptr<Communicator> made(new Communicator(real, comm, std::move(making)));
  if (!made->is_blocking()) {
    made->obstacle_ = "the communicator is non-blocking";
    return made;
  }
  if (!made->learn_place()) {
    return Status::error(Code::kSystemError, "communicator '{}': NCCL does not tell its size, rank or device",
                         made->name());
  }
  if (!real->is_recent()) {
    made->obstacle_ =
        formatted("NCCL {} has no ncclSend: compressing needs 2.7 or later", real->version_text());
    log(LogLevel::kWarn, "communicator '{}' is not compressed: {}", made->name(), made->obstacle_);
  } else if (!made->is_everywhere() && made->ranks_ > 1) {
    made->obstacle_ =
        "the process that made its unique id does not have libonebit-nccl.so, or not ONEBIT_COMPRESS";
    log(LogLevel::kWarn, "communicator '{}' is not compressed: {}", made->name(), made->obstacle_);
  } else if (made->ranks_ > 1) {
    const Settings& own = settings().settings;
    const cuda::CommunicatorSettings device_settings = {comm,
                                                        real->functions,
                                                        made->device_,
                                                        static_cast<unsigned>(made->ranks_),
                                                        static_cast<unsigned>(made->rank_),
                                                        own.block,
                                                        own.scale_is_mean,
                                                        own.residuals_are_bfloat16,
                                                        own.chunk};
    std::array<char, 256> message{};
    made->device_side_ = settings().library->create(device_settings, message.data(), message.size());
    if (made->device_side_ == nullptr) {
      return Status::error(Code::kSystemError, "communicator '{}', rank {}: {}", made->name(), made->rank_,
                           message.data());
    }
  }
  return made;
}

bool Communicator::learn_place() {
  return real_->count(comm_, &ranks_) == nccl::kSuccess &&
         real_->user_rank(comm_, &rank_) == nccl::kSuccess &&
         real_->device(comm_, &device_) == nccl::kSuccess;
}

Communicator::~Communicator() {
  if (device_side_ != nullptr) settings().library->destroy(device_side_);
}

bool Communicator::exact(const Arguments& call, std::string_view reason) {
  ++exact_calls_;
  log(LogLevel::kInfo, "{}: {}", described(call), reason);
  return false;
}

std::string Communicator::described(const Arguments& call) const {
  return formatted("communicator '{}', rank {}, {} of {} x {}", name(), rank_,
                   call.scatters ? "reduce-scatter" : "allreduce", call.count,
                   name_of(static_cast<DataType>(call.type)));
}

nccl::Result Communicator::call_real(const Arguments& call) const {
  const auto function = call.scatters ? real_->functions.reduce_scatter : real_->functions.all_reduce;
  return function(call.send, call.receive, call.count, call.type, call.op, comm_, call.stream);
}

bool Communicator::is_warming_up(const std::string& tag, const Arguments& call) {
  const std::uint32_t calls = settings().settings.warmup_calls;
  if (calls == 0) return false;
  const std::string key = tag.empty() ? formatted("{}:{}:{}:{}", call.scatters, call.count,
                                                  static_cast<int>(call.type), static_cast<int>(call.op))
                                      : "tag " + tag;
  std::uint32_t& made = warmup_[key];
  if (made >= calls) return false;
  ++made;
  return true;
}

bool Communicator::decide(const Arguments& call, std::string* tag) {
  *tag = api::resolve_tag("", call.send);
  api::count_call("");
  const auto exact_because = [&](std::string_view reason) {
    if (!tag->empty()) ++counts_[*tag].exact;
    return exact(call, reason);
  };
  if (!obstacle_.empty()) return exact_because(obstacle_);
  if (call.op != nccl::kSum && call.op != nccl::kAvg) {
    return exact_because("exact: the reduction is neither sum nor average");
  }
  const auto ranks = static_cast<std::size_t>(ranks_);
  const collective::CallFacts facts = {call.scatters ? call.count * ranks : call.count,
                                       static_cast<DataType>(call.type),
                                       static_cast<ReduceOp>(call.op),
                                       tag->empty() ? kUntagged : *tag,
                                       name(),
                                       ranks};
  const std::uint64_t min_size = settings().settings.min_size;
  const collective::Decision decision = collective::decide(settings().rules, min_size, facts);
  if (!decision.compress) {
    const bool is_read = log_level() >= LogLevel::kInfo;
    return exact_because(is_read ? collective::explain(decision, settings().rules, min_size, facts)
                                 : std::string());
  }
  if (settings().library->is_capturing(call.stream)) {
    if (!std::exchange(said_capture_, true)) {
      log(LogLevel::kWarn, "communicator '{}': calls that are captured into a CUDA graph are not compressed",
          name());
    }
    return exact_because("exact: its stream is being captured into a graph");
  }
  if (is_warming_up(*tag, call)) return exact_because("exact: one of the first ONEBIT_WARMUP_CALLS");
  ++counts_[*tag].compressed;
  return true;
}

void Communicator::count_as_exact(std::string_view tag) {
  Counts& counts = counts_.find(tag)->second;
  --counts.compressed;
  if (!tag.empty()) ++counts.exact;
  ++exact_calls_;
}

bool Communicator::accepts_buffers(const Arguments& call) {
  const std::size_t element = size_of(static_cast<DataType>(call.type));
  for (const void* const address : {call.send, static_cast<const void*>(call.receive)}) {
    if (known_buffers_.contains(address)) continue;
    const auto refuse = [&](const char* why) {
      log(LogLevel::kWarn, "{}: the buffer at {} {}", described(call), address, why);
      return false;
    };
    if (reinterpret_cast<std::uintptr_t>(address) % element != 0)
      return refuse("is not aligned to its elements");
    if (!settings().library->is_reachable(address, device_)) return refuse("is no memory that a GPU can use");
    if (known_buffers_.size() >= kKnownBuffers) known_buffers_.clear();
    known_buffers_.insert(address);
  }
  return true;
}

void Communicator::close() {
  if (device_side_ != nullptr) settings().library->close(device_side_);
}

void Communicator::abort() {
  if (device_side_ != nullptr) settings().library->abort(device_side_);
}

nccl::Result Communicator::async_error(nccl::Result* error) const {
  if (real_->functions.async_error == nullptr) return nccl::kInvalidUsage;
  const nccl::Result result = real_->functions.async_error(comm_, error);
  if (result == nccl::kSuccess && *error == nccl::kSuccess && device_side_ != nullptr)
    *error = settings().library->state(device_side_);
  return result;
}

void Communicator::leave() {
  if (device_side_ != nullptr) settings().library->leave(device_side_);
}

void Communicator::give_up() {
  if (is_given_up_.exchange(true)) return;
  abort();
  if (real_->functions.abort != nullptr) real_->functions.abort(comm_);
}

void Communicator::log_summary() {
  if (log_level() < LogLevel::kInfo) return;
  if (!is_blocking()) learn_place();  // it was not there yet when it was made
  std::uint64_t compressed = 0;
  std::string tags;
  for (const auto& [tag, counts] : counts_) {
    compressed += counts.compressed;
    tags += formatted("; {} {} in 1 bit, {} exact", tag.empty() ? kUntagged : std::string_view(tag),
                      counts.compressed, counts.exact);
  }
  cuda::CommunicatorStatistics device{};
  if (device_side_ != nullptr) device = settings().library->statistics(device_side_);
  log(LogLevel::kInfo,
      "communicator '{}', rank {} of {}: {} calls in 1 bit ({} bytes, {} sent, {} batches), {} exact, {} "
      "bytes of "
      "residuals, {} "
      "resets{}",
      name(), rank_, ranks_, compressed, device.bytes, device.sent_bytes, device.batches, exact_calls_,
      device.residual_bytes, device.resets, tags);
}

// ---- the registry ----

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<nccl::Comm, std::shared_ptr<Communicator>> communicators;
};
Registry& registry() {
  // Never destroyed: threads of the job may still call when static objects are torn down.
  static Registry* const instance = new Registry;
  return *instance;
}

/// For jobs that end without ncclCommDestroy.
void leave_the_rest() {
  std::vector<std::shared_ptr<Communicator>> rest;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& [comm, communicator] : registry().communicators) rest.push_back(communicator);
  }
  for (const auto& communicator : rest) {
    communicator->leave();
    communicator->log_summary();
  }
}

}  // namespace

void add(const std::shared_ptr<Communicator>& communicator) {
  static const int registered = std::atexit(leave_the_rest);
  static_cast<void>(registered);
  const std::lock_guard lock(registry().mutex);
  registry().communicators[communicator->comm()] = communicator;
}

std::shared_ptr<Communicator> find(nccl::Comm comm) {
  const std::lock_guard lock(registry().mutex);
  const auto at = registry().communicators.find(comm);
  return at == registry().communicators.end() ? nullptr : at->second;
}

std::shared_ptr<Communicator> remove(nccl::Comm comm) {
  const std::lock_guard lock(registry().mutex);
  const auto node = registry().communicators.extract(comm);
  return node.empty() ? nullptr : std::move(node.mapped());
}

}  // namespace onebit::shim
