// The host's Memory. What a program gives is checked by CUDA's driver, if the process has one: memory of a
// GPU would end it.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "optimizer/memory.h"

namespace onebit::optimizer {
namespace {

constexpr std::size_t kAlignment = 64;

/// cuPointerGetAttribute, with the numbers of its interface.
using PointerGetAttribute = int (*)(void* value, int attribute, std::uintptr_t address);
constexpr int kMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kIsManaged = 8;      // CU_POINTER_ATTRIBUTE_IS_MANAGED
constexpr unsigned kOnDevice = 2;  // CU_MEMORYTYPE_DEVICE

/// Null in a process without a driver.
PointerGetAttribute driver() {
  static std::atomic<PointerGetAttribute> found = nullptr;
  if (found != nullptr) return found;
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // held from now on
  if (library == nullptr) return nullptr;
  return found = reinterpret_cast<PointerGetAttribute>(::dlsym(library, "cuPointerGetAttribute"));
}

bool is_on_device(const void* address) {
  const PointerGetAttribute ask = driver();
  if (ask == nullptr) return false;
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  unsigned type = 0;
  unsigned managed = 0;
  if (ask(&type, kMemoryType, number) != 0 || type != kOnDevice) return false;
  return ask(&managed, kIsManaged, number) != 0 || managed == 0;
}

class HostMemory final : public Memory {
 public:
  Result<void*> allocate(std::size_t bytes) override {
    if (bytes == 0) return static_cast<void*>(nullptr);
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    // Large ones come from the system's zero pages, which only calloc knows.
    void* const memory = rounded < bytes ? nullptr : std::calloc(rounded + kAlignment, 1);
    if (memory == nullptr) return Status::error(Code::kSystemError, "out of memory for {} bytes", bytes);
    const auto start = (reinterpret_cast<std::uintptr_t>(memory) / kAlignment + 1) * kAlignment;
    std::memcpy(reinterpret_cast<void*>(start - sizeof memory), &memory, sizeof memory);
    return reinterpret_cast<void*>(start);
  }
  void release(void* memory) noexcept override {
    void* start = nullptr;
    std::memcpy(&start, static_cast<std::byte*>(memory) - sizeof start, sizeof start);
    std::free(start);
  }
  void zero(float* to, std::size_t count) override { std::fill_n(to, count, 0.0F); }
  void copy(float* to, const float* from, std::size_t count) override { std::copy_n(from, count, to); }
  Status read(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return Status();
  }
  Status write(void* to, const void* from, std::size_t bytes) override { return read(to, from, bytes); }
  Status check(const void* address, std::size_t /*alignment*/) override {
    if (!is_on_device(address)) return Status();
    return Status::error(Code::kInvalidArgument,
                         "the memory at {} is a GPU's, but this optimizer's is the host's: make it by "
                         "onebitOptimizerCreateOnDevice",
                         address);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace onebit::optimizer
