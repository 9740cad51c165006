#include "collective/communicator.h"

#include <sched.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "collective/call_guard.h"

namespace onebit::collective {
namespace {

/// How long a rank that has seen a connection break looks for others that break before it gives up.
constexpr std::chrono::milliseconds kSecondLook(100);
/// Up to here a call is waits more than bytes: to poll pays. Above, the time belongs to the compute threads.
constexpr std::size_t kPolledBytes = 1024 * 1024;

/// The cores that this process may run on.
unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

/// A compute thread's share of a parallel loop: whichever index is next, until none is left.
struct Communicator::ParallelTask final : Task {
  ParallelBody body = nullptr;
  const void* context = nullptr;
  std::size_t count = 0;
  std::atomic<std::size_t>* next = nullptr;
  void run() noexcept override {
    for (std::size_t i = (*next)++; i < count; i = (*next)++) body(context, i);
  }
};

Communicator::Communicator(std::string name, const Settings& settings, std::size_t rank, std::size_t ranks)
    : name_(std::move(name)),
      settings_(settings),
      rank_(rank),
      process_(getpid()),
      endpoints_(ranks, nullptr),
      residuals_(rank, ranks) {
  parameters_.block = settings.block;
  parameters_.scale = settings.scale_is_mean ? codec::Scale::kMean : codec::Scale::kRms;
}

Result<std::unique_ptr<Communicator>> Communicator::create(std::unique_ptr<bootstrap::Rendezvous> rendezvous,
                                                           std::string name, const Settings& settings) {
  std::unique_ptr<Communicator> made(new Communicator(std::move(name), settings,
                                                      static_cast<std::size_t>(rendezvous->rank()),
                                                      static_cast<std::size_t>(rendezvous->world_size())));
  if (const Status own = made->set_up(*rendezvous); !own.ok()) {
    return made->break_with(rendezvous->fail(own));
  }
  log(LogLevel::kInfo, "communicator '{}': rank {} of {}, {} compute threads, codec {}, transport {} ({})",
      made->name_, made->rank_, made->ranks(), made->compute_threads_, made->codec_->name,
      made->transport_.transport, made->transport_.why);
  return made;
}

Status Communicator::check_settings(const Settings& settings) {
  ONEBIT_RETURN_IF_ERROR(Rules::parse(settings.compress).status());
  return codec::find_implementation(settings.codec_impl).status().with_context("ONEBIT_CODEC_IMPL");
}

Status Communicator::set_up(bootstrap::Rendezvous& rendezvous) {
  ONEBIT_RETURN_IF_ERROR(check_settings(settings_));
  if (settings_.transport == "nccl") {
    return Status(
        Code::kInvalidUsage,
        "ONEBIT_TRANSPORT=nccl is for the allreduces of an NCCL job; for host memory set auto, or another");
  }
  ONEBIT_ASSIGN_OR_RETURN(rules_, Rules::parse(settings_.compress));
  ONEBIT_ASSIGN_OR_RETURN(codec_, codec::find_implementation(settings_.codec_impl));
  const unsigned share = usable_cores() / static_cast<unsigned>(std::max(1, rendezvous.local_ranks()));
  compute_threads_ = settings_.threads != 0 ? settings_.threads : std::clamp(share, 1U, 8U);
  const bootstrap::Key& key = rendezvous.job_key();
  const auto of_job =
      bootstrap::derive_key({reinterpret_cast<const char*>(key.data()), key.size()}, "job number");
  std::memcpy(&job_, of_job.data(), sizeof job_);
  live_name_.emplace(name_, job_);
  ONEBIT_RETURN_IF_ERROR(compare_settings(rendezvous));
  return connect(rendezvous);
}

Communicator::~Communicator() {
  if (getpid() != process_) {
    // The compute threads do not exist in a forked child: their handles are left alone.
    static_cast<void>(pool_.release());
    return;
  }
  pool_.reset();
  if (const Status failure = async_error(); !failure.ok()) {
    static_cast<void>(break_with(failure));  // an abort outside a call has not told the peers yet
    return;
  }
  for (transport::Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->finish();
  }
  const auto is_closed = [](const transport::Endpoint* endpoint) {
    return endpoint == nullptr || endpoint->closed();
  };
  const Deadline deadline =
      Deadline::after(std::min<std::chrono::milliseconds>(settings_.timeout, std::chrono::seconds(10)));
  while (!std::all_of(endpoints_.begin(), endpoints_.end(), is_closed) && !deadline.passed()) {
    completed_.clear();
    if (!context_->progress(std::chrono::milliseconds(deadline.poll_timeout()), completed_).ok()) break;
  }
}

Status Communicator::usable() const {
  ONEBIT_RETURN_IF_ERROR(in_own_process());
  return async_error();
}

Status Communicator::in_own_process() const {
  if (getpid() != process_) {
    return Status::error(Code::kInvalidUsage,
                         "communicator '{}' was made by process {} before fork(); this child cannot use it",
                         name_, process_);
  }
  return Status();
}

Status Communicator::async_error() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

void Communicator::abort() noexcept try {
  if (getpid() != process_) return;
  abort_requested_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(status_mutex_);
    if (status_.ok()) status_ = Status(Code::kAborted, "aborted by this process (onebitCommAbort)");
  }
  if (context_ != nullptr) context_->wake();
  // A call in progress tells the peers when it sees the request. Where there is none, this thread does.
  if (in_call_.exchange(true, std::memory_order_acquire)) return;
  static_cast<void>(break_with(async_error()));
  in_call_.store(false, std::memory_order_release);
} catch (...) {  // no memory for the words: the request stands
}

Peers Communicator::next_operation(std::size_t bytes, bool with_pool) {
  polling_ = std::chrono::microseconds(bytes <= kPolledBytes ? settings_.spin_us : 0);
  ++operation_;
  Peers peers;
  peers.rank = rank_;
  peers.endpoints = endpoints_;
  peers.pool = with_pool ? pool() : nullptr;
  peers.operation = operation_;
  peers.check = XXH32(current_call_.data(), current_call_.size(), 0);
  peers.memory = &call_memory_;
  return peers;
}

ThreadPool* Communicator::pool() {
  if (pool_ == nullptr) {
    auto made = ThreadPool::create(compute_threads_, [this] { context_->wake(); });
    if (made.ok()) {
      pool_ = std::move(*made);
    } else {
      log(LogLevel::kWarn, "communicator '{}' computes in the calling thread: {}", name_,
          made.status().message());
    }
  }
  return pool_.get();
}

void Communicator::run_parallel(std::size_t count, ParallelBody body, const void* context) {
  ThreadPool* const threads = count > 1 ? pool() : nullptr;
  const std::size_t helpers = threads == nullptr ? 0 : std::min<std::size_t>(threads->threads(), count - 1);
  if (parallel_tasks_.size() < helpers) parallel_tasks_.resize(helpers);
  std::atomic<std::size_t> next{0};
  ParallelTask mine;
  mine.body = body;
  mine.context = context;
  mine.count = count;
  mine.next = &next;
  for (std::size_t i = 0; i < helpers; ++i) {
    parallel_tasks_[i] = mine;
    threads->submit(parallel_tasks_[i], Urgency::kHigh);
  }
  mine.run();
  if (helpers == 0) return;
  threads->drain();
  finished_.clear();
  threads->take_finished(finished_);
  finished_.clear();
}

Status Communicator::drive(Operation& operation, std::size_t depth) {
  Status status;
  try {
    completed_.reserve(Schedule::most_transfers(ranks(), depth));
    finished_.reserve(Schedule::most_computations(ranks(), depth));
    status = drive_loop(operation);
  } catch (const std::exception& error) {  // out of memory
    status = Status(Code::kSystemError, error.what());
  }
  if (status.ok()) return status;
  const Status broken = break_with(name_all_failed(status).with_context(current_call_));
  // Aborted endpoints hold no requests; once the compute threads rest, nothing refers to the operation any
  // more.
  if (pool_ != nullptr) {
    pool_->drain();
    finished_.clear();
    pool_->take_finished(finished_);
  }
  finished_.clear();
  completed_.clear();
  return broken;
}

Status Communicator::drive_loop(Operation& operation) {
  if (abort_requested_.load(std::memory_order_acquire)) return async_error();
  ONEBIT_RETURN_IF_ERROR(operation.start());
  Deadline deadline = Deadline::after(settings_.timeout);
  // Bytes that move without completing anything count too; they are looked at a few times before the
  // deadline.
  const auto sampling = settings_.timeout / 8;
  Deadline sample = Deadline::after(sampling);
  std::uint64_t moved = bytes_moved();
  Deadline polls = Deadline::after(polling_);
  while (!operation.done()) {
    auto computed = operation.compute_one();
    if (!computed.ok()) return computed.status();
    completed_.clear();
    finished_.clear();
    const bool polling = polling_.count() > 0 && !polls.passed();
    const int patience = *computed || polling ? 0 : deadline.earlier(sample).poll_timeout();
    ONEBIT_RETURN_IF_ERROR(context_->progress(std::chrono::milliseconds(patience), completed_));
    if (pool_ != nullptr) pool_->take_finished(finished_);
    for (transport::Request* request : completed_) {
      if (request->state == transport::Request::State::kFailed && context_->failed() != nullptr) {
        return endpoint_failure(*context_->failed());
      }
      ONEBIT_RETURN_IF_ERROR(operation.on_request(*request));
    }
    for (Task* task : finished_) ONEBIT_RETURN_IF_ERROR(operation.on_task(*task));
    if (abort_requested_.load(std::memory_order_acquire)) return async_error();
    if (!operation.done() && context_->failed() != nullptr) return endpoint_failure(*context_->failed());
    if (*computed || !completed_.empty() || !finished_.empty()) {
      deadline = Deadline::after(settings_.timeout);
      polls = Deadline::after(polling_);
      continue;
    }
    if (polling) {
      sched_yield();  // with more ranks than cores, the one that is waited for may need this one
      continue;
    }
    ONEBIT_RETURN_IF_ERROR(check_in_step());
    if (sample.passed()) {
      sample = Deadline::after(sampling);
      if (std::exchange(moved, bytes_moved()) != moved) deadline = Deadline::after(settings_.timeout);
    }
    if (deadline.passed()) {
      return Status::error(Code::kTimeout,
                           "no progress for {} ms (ONEBIT_TIMEOUT) in call {}; waiting for {}",
                           settings_.timeout.count(), operation_, describe(operation.waiting_for()));
    }
  }
  return Status();
}

Status Communicator::check_in_step() const {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    if (endpoints_[peer] == nullptr) continue;
    const auto message = endpoints_[peer]->waiting_message();
    if (!message || !message->blocks || operation_of(message->tag) == operation_) continue;
    return Status::error(Code::kInvalidUsage,
                         "rank {} at {} sends for its call {} while this rank waits for it in call {}: the "
                         "ranks do not make the same calls",
                         peer, where_[peer], operation_of(message->tag), operation_);
  }
  return Status();
}

Status Communicator::break_with(const Status& status) {
  Status first;
  {
    const std::lock_guard lock(status_mutex_);
    if (status_.ok()) status_ = status.with_context(formatted("communicator '{}'", name_));
    first = status_;
  }
  const Status reason(first.code(), formatted("rank {} gave up: {}", rank_, status.message()));
  for (transport::Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->abort(reason);
  }
  return first;
}

Status Communicator::name_all_failed(const Status& first) {
  const transport::Endpoint* const known = context_->failed();
  if (known == nullptr || ranks() <= 2 || first.code() != Code::kRemoteError) return first;
  const Deadline deadline = Deadline::after(kSecondLook);
  while (!deadline.passed()) {
    completed_.clear();
    if (!context_->progress(std::chrono::milliseconds(deadline.poll_timeout()), completed_).ok()) break;
  }
  std::string text = first.message();
  for (const transport::Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr || endpoint == known || endpoint->status().ok()) continue;
    text += "; " + endpoint_failure(*endpoint).message();
  }
  return Status(first.code(), std::move(text));
}

Status Communicator::endpoint_failure(const transport::Endpoint& endpoint) const {
  const auto at = std::find(endpoints_.begin(), endpoints_.end(), &endpoint);
  const auto rank = static_cast<std::size_t>(at - endpoints_.begin());
  return endpoint.status().with_context(formatted("rank {} at {}", rank, where_[rank]));
}

std::uint64_t Communicator::bytes_moved() const {
  std::uint64_t bytes = 0;
  for (const transport::Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    const transport::Counters counters = endpoint->counters();
    bytes += counters.wire_sent + counters.wire_received;
  }
  return bytes;
}

std::string Communicator::describe(std::span<const std::size_t> ranks) const {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += formatted("{}rank {} at {}", i == 0 ? "" : ", ", ranks[i], where_[ranks[i]]);
  }
  if (ranks.size() > kMost) text += formatted(" and {} more", ranks.size() - kMost);
  return text.empty() ? "nobody" : text;
}

std::string Communicator::explain(std::size_t count, DataType type, ReduceOp op, std::string_view tag) const {
  const CallFacts facts{count, type, op, tag, name_, ranks()};
  return collective::explain(decide(rules_, settings_.min_size, facts), rules_, settings_.min_size, facts);
}

std::uint64_t Communicator::bytes_sent() const {
  std::uint64_t sent = 0;
  for (const transport::Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) sent += endpoint->counters().wire_sent;
  }
  return sent;
}

Result<Statistics> Communicator::statistics() {
  const CallGuard guard(*this, true);
  ONEBIT_RETURN_IF_ERROR(guard.status());
  Statistics now = statistics_;
  now.wire_bytes_sent = bytes_sent();
  for (const transport::Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) now.wire_bytes_received += endpoint->counters().wire_received;
  }
  now.residual_bytes = residuals_.memory("");
  return now;
}

}  // namespace onebit::collective
