#include "cuda_cpu/runtime/memory_table.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/engine/sanitizers.h"

namespace onebit::cuda_cpu {
namespace {

constexpr int kPoison = 0xFF;  // a NaN in every floating-point type
constexpr std::size_t kAlignment = 512;
constexpr std::size_t kPage = 4096;

bool protects(cudaMemoryType type) {
  return runtime_options().protect && type == cudaMemoryTypeDevice;
}

}  // namespace

// Never destroyed: streams may still run when the program's statics go.
MemoryTable& MemoryTable::instance() {
  static MemoryTable* const table = new MemoryTable;
  return *table;
}

cudaError_t MemoryTable::allocate(void** pointer, std::size_t bytes, cudaMemoryType type, int device) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.type = type;
  allocation.device = device;
  const std::lock_guard lock(mutex_);
  std::size_t& used = used_[static_cast<std::size_t>(device)];
  if (type == cudaMemoryTypeDevice && bytes > runtime_options().device_memory - used)
    return cudaErrorMemoryAllocation;
  void* memory = nullptr;
  if (protects(type)) {
    allocation.mapped = (bytes + kPage - 1) / kPage * kPage;
    memory = ::mmap(nullptr, allocation.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  } else if (::posix_memalign(&memory, kAlignment, bytes) != 0) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(memory, kPoison, bytes);
  if (allocation.mapped > 0 && running_ == 0) ::mprotect(memory, allocation.mapped, PROT_NONE);
  if (type == cudaMemoryTypeDevice) used += bytes;
  const Unobserved quiet;
  allocation.base = reinterpret_cast<std::uintptr_t>(memory);
  allocations_[allocation.base] = allocation;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t MemoryTable::release(void* pointer, cudaMemoryType type) {
  if (pointer == nullptr) return cudaSuccess;
  Allocation allocation;
  {
    const Unobserved quiet;
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == allocations_.end() || found->second.registered) return cudaErrorInvalidValue;
    const bool as_device = type == cudaMemoryTypeDevice && found->second.type == cudaMemoryTypeManaged;
    if (found->second.type != type && !as_device) return cudaErrorInvalidValue;
    allocation = found->second;
    allocations_.erase(found);
    if (type == cudaMemoryTypeDevice && !as_device)
      used_[static_cast<std::size_t>(allocation.device)] -= allocation.bytes;
  }
  if (allocation.mapped > 0) {
    ::munmap(pointer, allocation.mapped);
  } else {
    std::free(pointer);
  }
  return cudaSuccess;
}

cudaError_t MemoryTable::register_host(void* pointer, std::size_t bytes, int device) {
  if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
  const Unobserved quiet;
  const std::lock_guard lock(mutex_);
  if (locate(pointer) != allocations_.end()) return cudaErrorHostMemoryAlreadyRegistered;
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  allocations_[base] = {base, bytes, cudaMemoryTypeHost, device, true, 0};
  return cudaSuccess;
}

cudaError_t MemoryTable::unregister_host(void* pointer) {
  const Unobserved quiet;
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == allocations_.end() || !found->second.registered) return cudaErrorHostMemoryNotRegistered;
  allocations_.erase(found);
  return cudaSuccess;
}

std::map<std::uintptr_t, Allocation>::iterator MemoryTable::locate(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return allocations_.end();
  --next;
  return address < next->second.base + next->second.bytes ? next : allocations_.end();
}

std::optional<Allocation> MemoryTable::find(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = locate(pointer);
  if (found == allocations_.end()) return std::nullopt;
  return found->second;
}

std::size_t MemoryTable::used(int device) {
  const std::lock_guard lock(mutex_);
  return used_[static_cast<std::size_t>(device)];
}

bool MemoryTable::accessible(const void* pointer, std::size_t bytes, bool must_be_known) {
  const auto allocation = find(pointer);
  if (!allocation) return !must_be_known;
  return reinterpret_cast<std::uintptr_t>(pointer) + bytes <= allocation->base + allocation->bytes;
}

void MemoryTable::protect_all(int protection) {
  for (const auto& [base, allocation] : allocations_) {
    if (allocation.mapped > 0) ::mprotect(reinterpret_cast<void*>(base), allocation.mapped, protection);
  }
}

void MemoryTable::begin_access() {
  if (!runtime_options().protect) return;
  const std::lock_guard lock(mutex_);
  if (running_++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

void MemoryTable::end_access() {
  if (!runtime_options().protect) return;
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) protect_all(PROT_NONE);
}

}  // namespace onebit::cuda_cpu
