#include "cuda_cpu/runtime/kernel_table.h"

#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <sstream>

#include "cuda_cpu/engine/options.h"
#include "cuda_cpu/engine/sanitizers.h"

namespace onebit::cuda_cpu {

// Never destroyed: streams may still run when the program's statics go.
KernelTable& KernelTable::instance() {
  static KernelTable* const table = new KernelTable;
  return *table;
}

void KernelTable::add(const void* function, const KernelSignature* signature) {
  const Unobserved quiet;
  {
    const std::lock_guard lock(mutex_);
    if (by_address_.count(function) > 0) return;
  }
  const std::string name = linker_name(function);
  const std::lock_guard lock(mutex_);
  Kernel& kernel = by_address_[function];
  kernel.name = name;
  kernel.function = function;
  kernel.signature = signature;
  if (!name.empty()) by_name_[comparable_name(name)] = function;
}

void KernelTable::add_stub(const void* stub, const char* name) {
  const std::lock_guard lock(mutex_);
  by_address_[stub].name = name;
}

void KernelTable::load_libraries() {
  const std::lock_guard lock(loading_);
  if (loaded_) return;
  loaded_ = true;
  std::istringstream paths(runtime_options().kernels);
  for (std::string path; std::getline(paths, path, ':');) {
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::fprintf(stderr, "cuda_cpu: CUDA_CPU_KERNELS: %s\n", ::dlerror());
    }
  }
}

Kernel* KernelTable::find(const void* address) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_address_.find(address);
    if (found == by_address_.end()) return nullptr;
    if (found->second.signature != nullptr) return &found->second;
  }
  load_libraries();  // their constructors call add
  const Unobserved quiet;
  const std::lock_guard lock(mutex_);
  Kernel& stub = by_address_[address];
  if (const auto found = by_name_.find(comparable_name(stub.name)); found != by_name_.end()) {
    const Kernel& kernel = by_address_[found->second];
    stub.function = kernel.function;
    stub.signature = kernel.signature;
  }
  return &stub;
}

}  // namespace onebit::cuda_cpu

extern "C" void onebit_cuda_cpu_register_kernel(const void* kernel,
                                                const onebit::cuda_cpu::KernelSignature* signature) {
  onebit::cuda_cpu::KernelTable::instance().add(kernel, signature);
}
