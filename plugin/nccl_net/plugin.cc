#include "nccl_net/plugin.h"

#include <pthread.h>
#include <sys/resource.h>

#include "base/log.h"
#include "nccl_net/nccl_log.h"

namespace onebit::nccl_net {
namespace {

constexpr std::chrono::milliseconds kDrainAtExit{1000};

/// NCCL's channels times its peers take many sockets, and the usual soft limit is 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  log(LogLevel::kInfo, "raised RLIMIT_NOFILE of this process from {} to {}", before, limit.rlim_max);
}

}  // namespace

/// Both mutexes are free in a child; what it inherited knows that it is (Comm, ListenComm).
struct ForkHandlers {
  static void before() {
    Plugin::get().mutex_.lock();
    Plugin::get().closing_.mutex().lock();
  }
  static void after() {
    Plugin::get().closing_.mutex().unlock();
    Plugin::get().mutex_.unlock();
  }
};

/// What NCCL closed last must still reach the peers; before version 11 there is no finalize to wait in.
struct AtExit {
  ~AtExit() { Plugin::get().closing_.drain(kDrainAtExit); }
};

Plugin& Plugin::get() {
  static Plugin& made = *new Plugin;
  return made;
}

Plugin::Plugin() {
  pthread_atfork(&ForkHandlers::before, &ForkHandlers::after, &ForkHandlers::after);
}

Result<std::shared_ptr<Setup>> Plugin::start(int version, abi::Logger logger) {
  static const AtExit at_exit;
  log_to(logger);
  set_log_level(LogLevel::kTrace);  // NCCL decides what is seen
  raise_descriptor_limit();
  auto setup = Setup::read();
  if (!setup.ok()) return setup.status();
  const std::lock_guard lock(mutex_);
  if (inherited()) {  // what its parent made may have been in the middle of a change
    generation_ = UniqueSocket::process_generation();
    setup_.reset();
    process_instance_.reset();
    instances_.clear();
  }
  // NCCL counts devices once for all communicators, so their numbers hold while there is one.
  if (!setup_ || instances_.empty()) {
    if (!setup_ || !setup_->same_as(**setup)) setup_ = *setup;
  }
  if ((announced_ & 1U << version) == 0) {
    announced_ |= 1U << version;
    log(LogLevel::kInfo, "onebit {}, net plugin API v{}, transport {} ({}), {} devices: {}", ONEBIT_VERSION,
        version, setup_->transport().transport, setup_->transport().why, setup_->device_count(),
        setup_->describe());
  }
  return setup_;
}

Status Plugin::init_process(int version, abi::Logger logger) {
  ONEBIT_ASSIGN_OR_RETURN(auto setup, start(version, logger));
  closing_.sweep();
  const std::lock_guard lock(mutex_);
  // Attempts to connect that are under way go on where nothing has changed.
  if (!process_instance_ || &process_instance_->setup() != setup.get()) {
    process_instance_ = std::make_shared<Instance>(std::move(setup), 0);
  }
  return Status();
}

Status Plugin::init(int version, abi::Logger logger, std::uint32_t traffic_class, void** ctx) {
  *ctx = nullptr;
  ONEBIT_ASSIGN_OR_RETURN(auto setup, start(version, logger));
  auto made = std::make_shared<Instance>(std::move(setup), traffic_class);
  *ctx = made.get();
  const std::lock_guard lock(mutex_);
  instances_.emplace(*ctx, std::move(made));
  return Status();
}

void Plugin::finalize(void* ctx) {
  std::shared_ptr<Instance> ended;
  std::vector<Listening> abandoned;
  {
    const std::lock_guard lock(mutex_);
    const auto at = instances_.find(ctx);
    if (at != instances_.end()) {
      ended = std::move(at->second);
      instances_.erase(at);
    }
    for (auto listening = listening_.begin(); listening != listening_.end();) {
      if (listening->second.instance != ended.get()) {
        ++listening;
        continue;
      }
      abandoned.push_back(std::move(listening->second));
      listening = listening_.erase(listening);
    }
  }
  closing_.sweep();
}

Result<std::shared_ptr<Instance>> Plugin::instance(void* ctx) {
  const std::lock_guard lock(mutex_);
  if (inherited()) {
    return Status(Code::kInvalidUsage,
                  "a call without an init in this process, which was forked since the last");
  }
  if (ctx == nullptr) {
    if (process_instance_) return process_instance_;
  } else if (const auto at = instances_.find(ctx); at != instances_.end()) {
    return at->second;
  }
  return Status(Code::kInvalidUsage, "a call without an init before it, or after its finalize");
}

Result<std::shared_ptr<Setup>> Plugin::setup() {
  const std::lock_guard lock(mutex_);
  if (setup_) return setup_;
  return Status(Code::kInvalidUsage, "a call without an init before it");
}

Status Plugin::listen(void* ctx, int device, void* handle, void** comm) {
  *comm = nullptr;
  closing_.sweep();
  ONEBIT_ASSIGN_OR_RETURN(const auto owner, instance(ctx));
  ONEBIT_ASSIGN_OR_RETURN(std::shared_ptr<ListenComm> made,
                          owner->listen(device, static_cast<std::byte*>(handle)));
  const std::lock_guard lock(mutex_);
  void* const name = made.get();
  listening_.emplace(name, Listening{std::move(made), owner.get()});
  *comm = name;
  return Status();
}

Status Plugin::connect(void* ctx, int device, void* handle, std::uint32_t traffic_class, void** comm) {
  *comm = nullptr;
  ONEBIT_ASSIGN_OR_RETURN(const auto owner, instance(ctx));
  ONEBIT_ASSIGN_OR_RETURN(std::unique_ptr<Comm> made,
                          owner->connect(device, static_cast<std::byte*>(handle), traffic_class));
  if (!made) return Status();
  const std::lock_guard lock(mutex_);
  Comm* const name = made.get();
  comms_.emplace(name, std::move(made));
  *comm = name;
  return Status();
}

Status Plugin::accept(void* listen_comm, void** comm) {
  *comm = nullptr;
  std::shared_ptr<ListenComm> listening;
  {
    const std::lock_guard lock(mutex_);
    const auto at = listening_.find(listen_comm);
    if (at == listening_.end()) return Status(Code::kInvalidUsage, "accept on a listener that was closed");
    listening = at->second.comm;
  }
  ONEBIT_ASSIGN_OR_RETURN(std::unique_ptr<Comm> made, listening->accept());
  if (!made) return Status();
  const std::lock_guard lock(mutex_);
  Comm* const name = made.get();
  comms_.emplace(name, std::move(made));
  *comm = name;
  return Status();
}

void Plugin::close_comm(void* comm) {
  std::unique_ptr<Comm> closed;
  {
    const std::lock_guard lock(mutex_);
    const auto at = comms_.find(comm);
    if (at == comms_.end()) return;
    closed = std::move(at->second);
    comms_.erase(at);
  }
  closing_.add(std::move(closed));
}

void Plugin::close_listen(void* comm) {
  Listening closed{};
  const std::lock_guard lock(mutex_);
  const auto at = listening_.find(comm);
  if (at == listening_.end()) return;
  closed = std::move(at->second);
  listening_.erase(at);
}

}  // namespace onebit::nccl_net
