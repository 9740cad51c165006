#include "transport/verbs/verbs_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace onebit::transport {
namespace {

std::string locked_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} bytes", limit.rlim_cur);
}

Status refused(int error, std::size_t bytes, const std::string& device) {
  const Status status =
      Status::system(error, fmt::format("register {} bytes of memory with {}", bytes, device));
  if (error != ENOMEM) return status;
  return Status::error(
      Code::kSystemError,
      "{}: RLIMIT_MEMLOCK of this process is {}; make it unlimited: `ulimit -l unlimited`, for all "
      "logins `* - memlock unlimited` in /etc/security/limits.conf, in a systemd service "
      "LimitMEMLOCK=infinity, in a container --ulimit memlock=-1. Or set ONEBIT_TRANSPORT=tcp",
      status.message(), locked_limit());
}

}  // namespace

void RegisteredMemory::Hold::reset() noexcept {
  RegisteredMemory* const owner = std::exchange(owner_, nullptr);
  if (owner == nullptr || owner->generation_ != UniqueSocket::process_generation()) return;
  Regions ended;  // and its end takes long: without the lock
  const std::lock_guard lock(owner->mutex_);
  if (--at_->holders == 0) ended.splice(ended.begin(), owner->regions_, at_);
}

RegisteredMemory::Hold RegisteredMemory::Hold::share() const noexcept {
  Hold made;
  made.owner_ = owner_;
  made.at_ = at_;
  const std::lock_guard lock(owner_->mutex_);
  ++at_->holders;
  return made;
}

Result<RegisteredMemory::Hold> RegisteredMemory::hold(const void* data, std::size_t bytes, bool writable) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  auto at = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
    if (begin < region.begin || (writable && !region.writable)) return false;
    const std::size_t offset = begin - region.begin;
    return offset <= region.bytes && bytes <= region.bytes - offset;
  });
  if (at == regions_.end()) {
    const int access = writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
    VerbsRegion region(*library_, library_->reg_mr(domain_, const_cast<void*>(data), bytes, access));
    if (!region) return refused(errno, bytes, device_);
    at = regions_.insert(regions_.begin(), Region{begin, bytes, writable, 0, std::move(region)});
  }
  Hold first;
  first.owner_ = this;
  first.at_ = at;
  ++at->holders;
  return first;
}

}  // namespace onebit::transport
