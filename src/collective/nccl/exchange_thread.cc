#include "collective/nccl/exchange_thread.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/log.h"

namespace onebit::nccl {
namespace {

/// A NaN in every type, as a scale, too.
constexpr int kNanByte = 0xff;
/// How far the host's word goes after a failure: past all jobs that there may be.
constexpr std::uint32_t kPastAll = 0x3fffffff;
/// Between two looks at what a stream says.
constexpr auto kLook = std::chrono::microseconds(20);
/// Between two looks at a context that has failed.
constexpr auto kAfterFaults = std::chrono::milliseconds(10);
/// Transports want to be called about once a second.
constexpr auto kAtLeast = std::chrono::milliseconds(1000);
constexpr auto kMostGoodbye = std::chrono::seconds(10);

}  // namespace

struct ExchangeThread::Transfer {
  transport::Request request;
  Job* job = nullptr;
  Message message{};
};

struct ExchangeThread::Job {
  std::uint32_t number = 0;
  std::uint32_t check = 0;
  bool follows_stream = false;
  std::size_t pending = 0;
  std::vector<Transfer> transfers;
};

ExchangeThread::ExchangeThread(const Options& options)
    : options_(options), process_(getpid()), endpoints_(options.ranks) {}

onebit::Result<std::unique_ptr<ExchangeThread>> ExchangeThread::create(const Options& options) {
  std::unique_ptr<ExchangeThread> made(new ExchangeThread(options));
  ONEBIT_ASSIGN_OR_RETURN(const transport::Choice choice, transport::choose(options.settings));
  ONEBIT_ASSIGN_OR_RETURN(made->context_,
                          transport::make_context(choice.transport, options.settings, SocketAddress()));
  ONEBIT_ASSIGN_OR_RETURN(made->listener_, made->context_->listen(0));
  return made;
}

ExchangeThread::~ExchangeThread() {
  if (getpid() != process_) {  // a forked child has no such thread
    if (thread_.joinable()) thread_.detach();
  } else if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    context_->wake();
    thread_.join();
  }
  endpoints_.clear();  // before the requests that they may hold
}

// ---- set-up ----

std::string ExchangeThread::described(std::size_t rank) const {
  const transport::Endpoint* const endpoint = endpoints_[rank].get();
  const std::string place = endpoint == nullptr ? std::string() : formatted(" at {}", endpoint->peer());
  return formatted("{} {}{}", options_.peers, rank, place);
}

Status ExchangeThread::endpoint_failure(const transport::Endpoint& endpoint) const {
  const auto at = std::find_if(endpoints_.begin(), endpoints_.end(),
                               [&](const auto& one) { return one.get() == &endpoint; });
  return endpoint.status().with_context(described(static_cast<std::size_t>(at - endpoints_.begin())));
}

Status ExchangeThread::connect(std::span<const transport::Handle> handles) {
  const std::uint32_t own = options_.rank;
  for (std::size_t peer = 0; peer < options_.rank; ++peer) {
    auto endpoint = context_->connect(0, handles[peer], std::as_bytes(std::span(&own, 1)));
    if (!endpoint.ok()) return endpoint.status().with_context(described(peer));
    endpoints_[peer] = std::move(*endpoint);
  }
  return Status();
}

Status ExchangeThread::accept() {
  for (;;) {
    ONEBIT_ASSIGN_OR_RETURN(auto accepted, listener_->accept());
    if (accepted == nullptr) return Status();
    std::uint32_t peer = 0;
    if (accepted->hello().size() == sizeof peer) std::memcpy(&peer, accepted->hello().data(), sizeof peer);
    if (peer <= options_.rank || peer >= options_.ranks || endpoints_[peer] != nullptr) {
      log(LogLevel::kWarn, "connection from {} dropped: it says it is rank {}", accepted->peer(), peer);
      continue;
    }
    endpoints_[peer] = std::move(accepted);
  }
}

onebit::Result<bool> ExchangeThread::step() {
  completed_.clear();
  ONEBIT_RETURN_IF_ERROR(context_->progress(std::chrono::milliseconds(1), completed_));
  ONEBIT_RETURN_IF_ERROR(accept());
  if (context_->failed() != nullptr) return endpoint_failure(*context_->failed());
  return missing().empty();
}

std::string ExchangeThread::missing() const {
  std::string text;
  for (std::size_t peer = 0; peer < endpoints_.size(); ++peer) {
    const bool is_there =
        peer == options_.rank ||
        (endpoints_[peer] != nullptr && endpoints_[peer]->state() != transport::Endpoint::State::kConnecting);
    if (!is_there) text += formatted("{}{} {}", text.empty() ? "" : ", ", options_.peers, peer);
  }
  return text;
}

Status ExchangeThread::start(const StreamWords& words) {
  words_ = &words;
  listener_.reset();
  // The program's signals are not for this thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception& exception) {
    status = Status::error(Code::kSystemError, "the thread that moves messages: {}", exception.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

// ---- for the thread that calls ----

std::uint32_t ExchangeThread::post(std::span<const Message> messages, std::uint32_t check,
                                   bool follows_stream) {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_++;
    if (!status_.ok()) {
      spoil_memory();
      return number;
    }
    if (free_.empty()) free_.push_back(std::make_unique<Job>());
    std::unique_ptr<Job> job = std::move(free_.back());
    free_.pop_back();
    job->number = number;
    job->check = check;
    job->follows_stream = follows_stream;
    job->transfers.resize(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) job->transfers[i].message = messages[i];
    posted_.push_back(std::move(job));
  }
  context_->wake();
  return number;
}

void ExchangeThread::add_memory(std::span<std::byte> memory, bool receives) {
  const std::lock_guard lock(mutex_);
  memory_.push_back({memory, receives});
  if (receives && !status_.ok()) std::memset(memory.data(), kNanByte, memory.size());
}

Status ExchangeThread::drain(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return !status_.ok() || last_over_ + 1 == next_; };
  const auto left = std::chrono::milliseconds(std::max(0, deadline.poll_timeout()));
  if (getpid() != process_) return Status(Code::kInvalidUsage, "the communicator is another process's");
  if (!over_.wait_for(lock, left, is_over)) {
    lock.unlock();
    abort(Status(Code::kTimeout, "messages were not exchanged in time: a stream did not come to them"));
    lock.lock();
  }
  if (!status_.ok()) over_.wait_for(lock, kAtLeast, [&] { return is_failure_over_; });
  return status_;
}

Status ExchangeThread::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void ExchangeThread::abort(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = reason;
  }
  is_aborted_ = true;
  context_->wake();
}

// ---- the thread ----

void ExchangeThread::run() {
  try {
    loop();
    if (!has_failed_) say_goodbye();
  } catch (const std::exception& exception) {  // no memory
    fail(Status(Code::kSystemError, exception.what()));
  }
}

void ExchangeThread::loop() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_ && (has_failed_ || (jobs_.empty() && posted_.empty()))) return;
    }
    completed_.clear();
    Status status = context_->progress(patience(), completed_);
    if (has_failed_) {
      if (!status.ok()) std::this_thread::sleep_for(kAfterFaults);
      continue;
    }
    if (status.ok() && is_aborted_) status = this->status();
    for (transport::Request* const request : completed_) {
      if (status.ok()) status = finish(*request);
    }
    if (!completed_.empty()) expect_progress();
    // First what has come from a rank that has ended since.
    retire_jobs();
    if (status.ok() && context_->failed() != nullptr) status = endpoint_failure(*context_->failed());
    if (status.ok()) {
      take_posted();
      status = start_ready();
    }
    if (status.ok()) retire_jobs();
    if (status.ok()) status = check_deadline();
    if (!status.ok()) fail(status);
  }
}

std::chrono::milliseconds ExchangeThread::patience() const {
  if (has_failed_ || jobs_.empty()) return kAtLeast;
  if (started_ == jobs_.size())
    return std::min(kAtLeast, std::chrono::milliseconds(deadline_.poll_timeout()));
  // A stream is to say that its bytes are there: nothing wakes this thread then.
  std::this_thread::sleep_for(kLook);
  return std::chrono::milliseconds(0);
}

void ExchangeThread::take_posted() {
  const std::lock_guard lock(mutex_);
  for (std::unique_ptr<Job>& job : posted_) jobs_.push_back(std::move(job));
  posted_.clear();
  while (registered_.size() < memory_.size()) {
    const std::span<std::byte> bytes = memory_[registered_.size()].bytes;
    auto made = context_->register_memory(bytes.data(), bytes.size());
    // Without it each message is registered on its own.
    registered_.push_back(made.ok() ? std::move(*made) : nullptr);
  }
}

Status ExchangeThread::start_ready() {
  while (started_ < jobs_.size()) {
    Job& job = *jobs_[started_];
    if (job.follows_stream && !has_reached(words_->of_stream(), job.number)) return Status();
    ++started_;
    expect_progress();
    ONEBIT_RETURN_IF_ERROR(start(job));
  }
  return Status();
}

Status ExchangeThread::start(Job& job) {
  job.pending = job.transfers.size();
  for (Transfer& transfer : job.transfers) {
    transfer.job = &job;
    transfer.request = transport::Request();
    transfer.request.notify = true;
    transfer.request.user = &transfer;
    const Message& message = transfer.message;
    transport::Endpoint& endpoint = *endpoints_[message.peer];
    const Status status = message.is_sent ? endpoint.send(transfer.request, message.bytes.data(),
                                                          message.bytes.size(), job.number, job.check)
                                          : endpoint.receive(transfer.request, message.bytes.data(),
                                                             message.bytes.size(), job.number, job.check);
    if (status.ok()) continue;
    if (endpoint.state() == transport::Endpoint::State::kFinished) {
      return Status::error(Code::kRemoteError, "{} has destroyed its communicator", described(message.peer));
    }
    return status.with_context(described(message.peer));
  }
  return Status();
}

Status ExchangeThread::finish(transport::Request& request) {
  Transfer& transfer = *static_cast<Transfer*>(request.user);
  const Message& message = transfer.message;
  if (request.state == transport::Request::State::kFailed) {
    const transport::Endpoint& endpoint = *endpoints_[message.peer];
    if (!endpoint.status().ok()) return endpoint_failure(endpoint);
    return Status::error(Code::kRemoteError, "{} has destroyed its communicator", described(message.peer));
  }
  if (!message.is_sent && request.bytes != message.bytes.size()) {
    return Status::error(Code::kInvalidUsage,
                         "{} sent {} bytes where {} were due: the ranks do not make the same calls",
                         described(message.peer), request.bytes, message.bytes.size());
  }
  --transfer.job->pending;
  return Status();
}

void ExchangeThread::retire_jobs() {
  while (started_ > 0 && jobs_.front()->pending == 0) {
    words_->set_host(jobs_.front()->number);
    --started_;
    const std::lock_guard lock(mutex_);
    last_over_ = jobs_.front()->number;
    free_.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
    over_.notify_all();
  }
}

std::uint64_t ExchangeThread::bytes_moved() const {
  std::uint64_t bytes = 0;
  for (const auto& endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    const transport::Counters counters = endpoint->counters();
    bytes += counters.wire_sent + counters.wire_received;
  }
  return bytes;
}

void ExchangeThread::expect_progress() {
  deadline_ = Deadline::after(options_.settings.timeout);
  moved_ = bytes_moved();
}

Status ExchangeThread::check_deadline() {
  if (started_ == 0 || !deadline_.passed()) return Status();
  const std::uint64_t before = moved_;
  expect_progress();
  if (moved_ != before) return Status();
  std::string late;
  for (const Transfer& transfer : jobs_.front()->transfers) {
    if (transfer.request.state != transport::Request::State::kPending) continue;
    late += formatted("{}{}", late.empty() ? "" : ", ", described(transfer.message.peer));
  }
  return Status::error(Code::kTimeout, "no progress for {} ms (ONEBIT_TIMEOUT); waiting for {}",
                       options_.settings.timeout.count(), late);
}

void ExchangeThread::fail(const Status& reason) {
  has_failed_ = true;
  const Status told(reason.code(),
                    formatted("{} {} gave up: {}", options_.peers, options_.rank, reason.message()));
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->abort(told);
  }
  const std::lock_guard lock(mutex_);
  // A peer that ends while nothing is to be exchanged is news for the next call only: what has come is good.
  const bool is_idle = jobs_.empty() && posted_.empty();
  if (!is_idle) spoil_memory();
  const bool is_news = !is_idle && reason.code() != Code::kAborted;
  log(is_news ? LogLevel::kWarn : LogLevel::kInfo, "{} {}: {}", options_.peers, options_.rank,
      reason.message());
  if (status_.ok()) status_ = reason;
  words_->set_host(next_ + kPastAll);
  is_failure_over_ = true;
  over_.notify_all();
}

void ExchangeThread::spoil_memory() {
  for (const Area& area : memory_) {
    if (area.receives) std::memset(area.bytes.data(), kNanByte, area.bytes.size());
  }
}

void ExchangeThread::say_goodbye() {
  for (const auto& endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->finish();
  }
  const auto is_closed = [](const auto& endpoint) { return endpoint == nullptr || endpoint->closed(); };
  const Deadline deadline =
      Deadline::after(std::min<std::chrono::milliseconds>(options_.settings.timeout, kMostGoodbye));
  while (!std::all_of(endpoints_.begin(), endpoints_.end(), is_closed) && !deadline.passed()) {
    completed_.clear();
    if (!context_->progress(std::chrono::milliseconds(deadline.poll_timeout()), completed_).ok()) return;
  }
}

}  // namespace onebit::nccl
