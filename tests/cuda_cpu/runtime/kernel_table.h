// The kernels that can be launched, by the address that a program launches them with.
//
// In a program built by g++ that is the kernel itself, registered before each launch. In one built by nvcc it
// is a stub; the kernel is then the one of the same linker name in a library of CUDA_CPU_KERNELS, which is
// loaded at the first launch. Any thread.
#pragma once

#include <string>
#include <unordered_map>

#include "cuda_cpu/device/kernel.h"
#include "cuda_cpu/runtime/waiting.h"

namespace onebit::cuda_cpu {

struct Kernel {
  std::string name;  ///< the linker's; "" when it is not known
  const void* function = nullptr;
  const KernelSignature* signature = nullptr;  ///< null for a stub whose kernel is in no library
  int max_shared_bytes = 48 * 1024;            ///< dynamic shared memory of a block
};

class KernelTable {
 public:
  static KernelTable& instance();

  void add(const void* function, const KernelSignature* signature);
  void add_stub(const void* stub, const char* name);
  /// Null when the address is unknown. Stays valid.
  Kernel* find(const void* address);

 private:
  void load_libraries();

  Mutex mutex_;
  std::unordered_map<const void*, Kernel> by_address_;
  std::unordered_map<std::string, const void*> by_name_;  ///< of kernels, by comparable_name
  Mutex loading_;
  bool loaded_ = false;
};

/// The linker's name of the function at `address`, local ones too; "" when its file has no symbols.
std::string linker_name(const void* address);
/// The same for nvcc's and g++'s names of one kernel: they spell unnamed namespaces and `static` differently.
std::string comparable_name(const std::string& name);

}  // namespace onebit::cuda_cpu
