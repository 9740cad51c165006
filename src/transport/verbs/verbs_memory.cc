#include "transport/verbs/verbs_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace onebit::transport {
namespace {

std::string locked_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return formatted("{} bytes", limit.rlim_cur);
}

Status refused(int error, std::size_t bytes, const std::string& device) {
  const Status status =
      Status::system(error, formatted("register {} bytes of memory with {}", bytes, device));
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

int RegisteredMemory::access(bool writable) const noexcept {
  if (!writable) return 0;
  return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (flushed_ ? IBV_ACCESS_REMOTE_READ : 0);
}

RegisteredMemory::Hold RegisteredMemory::held(Regions::iterator at) noexcept {
  Hold made;
  made.owner_ = this;
  made.at_ = at;
  ++at->holders;
  return made;
}

Result<RegisteredMemory::Hold> RegisteredMemory::hold(const void* data, std::size_t bytes, bool writable) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
    if (begin < region.begin || (writable && !region.writable)) return false;
    const std::size_t offset = begin - region.begin;
    return offset <= region.bytes && bytes <= region.bytes - offset;
  });
  if (at != regions_.end()) return held(at);
  VerbsRegion region(*library_, library_->reg_mr(domain_, const_cast<void*>(data), bytes, access(writable)));
  if (!region) return refused(errno, bytes, device_);
  return held(regions_.insert(regions_.begin(), Region{begin, bytes, writable, 0, std::move(region)}));
}

Result<RegisteredMemory::Hold> RegisteredMemory::hold(const void* data, std::size_t bytes,
                                                      const DmaBuf& buffer) {
  if (library_->reg_dmabuf_mr == nullptr) {
    return Status(Code::kInvalidUsage,
                  "libibverbs.so.1 has no ibv_reg_dmabuf_mr, which memory of GPUs needs: install libibverbs1 "
                  "of rdma-core 34 or later");
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  VerbsRegion region(*library_,
                     library_->reg_dmabuf_mr(domain_, buffer.offset, bytes, begin, buffer.fd, access(true)));
  if (!region) {
    return Status::system(errno, formatted("register {} bytes of a dma-buf with {}", bytes, device_));
  }
  const std::lock_guard lock(mutex_);
  return held(regions_.insert(regions_.begin(), Region{begin, bytes, true, 0, std::move(region)}));
}

}  // namespace onebit::transport
