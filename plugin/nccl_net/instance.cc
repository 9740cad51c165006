#include "nccl_net/instance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/log.h"
#include "nccl_net/abi.h"

namespace onebit::nccl_net {
namespace {

using std::chrono::milliseconds;
using State = transport::Endpoint::State;

/// What the connecting side says first. The number is that of what the comms say to each other.
constexpr std::array<std::byte, 8> kHello{std::byte{'n'}, std::byte{'c'}, std::byte{'c'}, std::byte{'l'},
                                          std::byte{'n'}, std::byte{'e'}, std::byte{'t'}, std::byte{1}};

// NCCL's handle: that of the transport, then the number of the attempt, 0 where none is under way.
constexpr std::size_t kNumberAt = sizeof(transport::Handle);
static_assert(kNumberAt + sizeof(std::uint64_t) == abi::kHandleBytes);

std::atomic<std::uint64_t> g_next_number{1};

Status progress(transport::Context& context) {
  std::vector<transport::Request*> completed;
  return context.progress(milliseconds(0), completed);
}

Status of_another_process() {
  return Status(Code::kInvalidUsage, "the call belongs to the process that forked this one");
}

}  // namespace

// --- Listening ---

Result<std::unique_ptr<ListenComm>> ListenComm::open(std::shared_ptr<const Setup> setup, int device,
                                                     std::uint32_t traffic_class) {
  std::unique_ptr<ListenComm> made(new ListenComm(std::move(setup), device, traffic_class));
  ONEBIT_ASSIGN_OR_RETURN(made->context_, made->setup_->make_context(device, traffic_class));
  made->device_name_ = made->context_->devices().front().name;
  auto listening = made->context_->listen(0);
  if (!listening.ok()) {
    return listening.status().with_context(formatted("device {}", made->device_name_));
  }
  made->listener_ = std::move(*listening);
  return made;
}

Result<std::unique_ptr<ReceiveComm>> ListenComm::accept() {
  if (generation_ != UniqueSocket::process_generation()) return of_another_process();
  ONEBIT_RETURN_IF_ERROR(progress(*context_));
  if (!next_) {
    ONEBIT_ASSIGN_OR_RETURN(next_, setup_->make_context(device_, traffic_class_));
  }
  ONEBIT_RETURN_IF_ERROR(progress(*next_));
  for (;;) {
    auto accepted = next_->accept(*listener_);
    if (!accepted.ok()) {
      return accepted.status().with_context(formatted("accept on device {}", device_name_));
    }
    std::unique_ptr<transport::Endpoint> endpoint = std::move(*accepted);
    if (!endpoint) break;
    if (!std::ranges::equal(endpoint->hello(), kHello)) {
      const Status reason(Code::kInvalidUsage, "the net plugins of the two ends are of different versions");
      log(LogLevel::kWarn, "{}: {}", endpoint->peer(), reason.message());
      endpoint->abort(reason);
      continue;
    }
    waiting_since_ = {};
    return std::make_unique<ReceiveComm>(Line{std::move(next_), std::move(endpoint), device_name_});
  }
  const milliseconds limit = setup_->settings().timeout;
  const auto now = Clock::now();
  if (waiting_since_ == Clock::time_point()) waiting_since_ = now;
  if (now - waiting_since_ < limit) return std::unique_ptr<ReceiveComm>();
  return Status::error(Code::kTimeout,
                       "accept on device {}: the peer has not connected within {} s (ONEBIT_TIMEOUT)",
                       device_name_, limit.count() / 1000.0);
}

Result<std::unique_ptr<ListenComm>> Instance::listen(int device, std::byte* handle) {
  ONEBIT_ASSIGN_OR_RETURN(auto made, ListenComm::open(setup_, device, traffic_class_));
  std::memset(handle, 0, abi::kHandleBytes);
  std::memcpy(handle, &made->handle(), sizeof(transport::Handle));
  return made;
}

// --- Connecting ---

Result<std::unique_ptr<SendComm>> Instance::connect(int device, std::byte* handle,
                                                    std::uint32_t traffic_class) {
  transport::Handle to;
  std::uint64_t number = 0;
  std::memcpy(&to, handle, sizeof to);
  std::memcpy(&number, handle + kNumberAt, sizeof number);
  std::unique_ptr<Attempt> attempt = take(number, device, to);
  std::memset(handle + kNumberAt, 0, sizeof number);
  if (!attempt) {
    drop_forgotten();
    number = g_next_number.fetch_add(1, std::memory_order_relaxed);
    ONEBIT_ASSIGN_OR_RETURN(attempt, begin(device, to, traffic_class_ != 0 ? traffic_class_ : traffic_class));
  }
  ONEBIT_RETURN_IF_ERROR(go_on(*attempt));
  if (attempt->endpoint && attempt->endpoint->state() != State::kConnecting) {
    return std::make_unique<SendComm>(
        Line{std::move(attempt->context), std::move(attempt->endpoint), std::move(attempt->device_name)});
  }
  std::memcpy(handle + kNumberAt, &number, sizeof number);
  attempt->last_call = Clock::now();
  const std::lock_guard lock(mutex_);
  attempts_[number] = std::move(attempt);
  return std::unique_ptr<SendComm>();
}

Result<std::unique_ptr<Instance::Attempt>> Instance::begin(int device, const transport::Handle& handle,
                                                           std::uint32_t traffic_class) const {
  auto made = std::make_unique<Attempt>();
  made->device = device;
  made->handle = handle;
  ONEBIT_ASSIGN_OR_RETURN(made->context, setup_->make_context(device, traffic_class));
  made->device_name = made->context->devices().front().name;
  return made;
}

std::unique_ptr<Instance::Attempt> Instance::take(std::uint64_t number, int device,
                                                  const transport::Handle& handle) {
  const std::lock_guard lock(mutex_);
  const auto at = attempts_.find(number);
  if (at == attempts_.end() || at->second->device != device || at->second->handle.bytes != handle.bytes) {
    return nullptr;
  }
  std::unique_ptr<Attempt> taken = std::move(at->second);
  attempts_.erase(at);
  return taken;
}

/// Attempts that nobody asks for any more: of communicators that were aborted.
void Instance::drop_forgotten() {
  const auto before = Clock::now() - setup_->settings().init_timeout;
  const std::lock_guard lock(mutex_);
  std::erase_if(attempts_, [&](const auto& entry) { return entry.second->last_call < before; });
}

Status Instance::go_on(Attempt& attempt) const {
  const Settings& settings = setup_->settings();
  if (!attempt.endpoint) {
    if (Clock::now() < attempt.next_try) return Status();
    auto started = attempt.context->connect(0, attempt.handle, kHello);
    if (!started.ok()) {
      return started.status().with_context(formatted("connect over {}", attempt.device_name));
    }
    attempt.endpoint = std::move(*started);
    ++attempt.tries;
  }
  ONEBIT_RETURN_IF_ERROR(progress(*attempt.context));
  if (attempt.endpoint->state() != State::kFailed) return Status();
  // Nothing has been said yet: whatever refuses or resets, a peer that is slow to come up or a full queue,
  // may be gone at the next try.
  const Status why = attempt.endpoint->status();
  if (why.code() != Code::kRemoteError || attempt.tries > settings.connect_retries) {
    return why.with_context(formatted("device {}, after {} tries", attempt.device_name, attempt.tries));
  }
  const milliseconds pause(std::uint64_t{settings.connect_retry_ms} * attempt.tries);
  log(LogLevel::kInfo, "{} over {}: next try in {} ms", why.message(), attempt.device_name, pause.count());
  attempt.endpoint.reset();
  attempt.next_try = Clock::now() + pause;
  return Status();
}

}  // namespace onebit::nccl_net
