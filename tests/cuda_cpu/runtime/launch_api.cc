// cudaLaunchKernel and its kin, function attributes, and what nvcc's compiled code calls.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda_cpu/engine/grid.h"
#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/kernel_table.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

constexpr int kMostSharedBytes = 227 * 1024;
constexpr unsigned kMostGridYz = 65535;
constexpr unsigned kMostBlockZ = 64;
constexpr int kThreadsOfMultiprocessor = 2048;

/// The arguments of a launch, copied when it is called.
class Arguments {
 public:
  Arguments(const KernelSignature& signature, void* const* from) {
    for (unsigned i = 0; i < signature.argument_count; ++i) {
      values_.emplace_back(signature.argument_sizes[i] / sizeof(Word) + 1);
      std::memcpy(values_.back().data(), from[i], signature.argument_sizes[i]);
    }
    for (auto& value : values_) addresses_.push_back(value.data());
  }
  void* const* addresses() const { return addresses_.data(); }

 private:
  using Word = std::max_align_t;
  std::vector<std::vector<Word>> values_;
  std::vector<void*> addresses_;
};

bool valid_shape(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  const std::uint64_t threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
  return threads > 0 && threads <= kMaxThreads && block.z <= kMostBlockZ && grid.x > 0 &&
         grid.x <= 0x7FFFFFFFU && grid.y > 0 && grid.y <= kMostGridYz && grid.z > 0 &&
         grid.z <= kMostGridYz && shared_bytes <= static_cast<std::size_t>(kernel.max_shared_bytes);
}

cudaError_t launch(const void* address, dim3 grid, dim3 block, void* const* arguments,
                   std::size_t shared_bytes, cudaStream_t handle) {
  const Kernel* const kernel = KernelTable::instance().find(address);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (kernel->signature == nullptr) {
    std::fprintf(stderr, "cuda_cpu: no library of CUDA_CPU_KERNELS has the kernel %s\n",
                 kernel->name.c_str());
    return cudaErrorInvalidDeviceFunction;
  }
  if (!valid_shape(grid, block, shared_bytes, *kernel)) return cudaErrorInvalidConfiguration;
  const StreamPointer stream = Devices::instance().stream(handle);
  if (stream == nullptr || stream->device() != thread_state().device) return cudaErrorInvalidResourceHandle;
  const Unobserved quiet;
  auto copied = std::make_shared<const Arguments>(*kernel->signature, arguments);
  return enqueue(stream, [kernel, grid, block, shared_bytes, copied = std::move(copied)] {
    run_grid({kernel->signature, kernel->function, copied->addresses(), grid, block, shared_bytes,
              kernel->name.empty() ? "without a name" : kernel->name.c_str()});
  });
}

bool can_ignore(const cudaLaunchAttribute& attribute) {
  return attribute.id == cudaLaunchAttributeIgnore || attribute.id == cudaLaunchAttributePriority ||
         attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization;
}

/// What <<<>>> stands for between its two calls.
struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

extern "C" {

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  return report(launch(kernel, grid, block, arguments, shared_bytes, stream));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  if (!std::all_of(config->attrs, config->attrs + config->numAttrs, can_ignore))
    return report(cudaErrorNotSupported);
  return report(
      launch(kernel, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream));
}
cudaError_t cudaFuncSetAttribute(const void* address, cudaFuncAttribute attribute, int value) {
  Kernel* const kernel = KernelTable::instance().find(address);
  if (kernel == nullptr) return report(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > kMostSharedBytes) return report(cudaErrorInvalidValue);
  kernel->max_shared_bytes = value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* address) {
  const Kernel* const kernel = KernelTable::instance().find(address);
  if (kernel == nullptr) return report(cudaErrorInvalidDeviceFunction);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->maxDynamicSharedSizeBytes = kernel->max_shared_bytes;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          std::size_t) {
  if (threads <= 0 || threads > static_cast<int>(kMaxThreads)) return report(cudaErrorInvalidValue);
  *blocks = kThreadsOfMultiprocessor / threads;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                   int threads, std::size_t shared_bytes,
                                                                   unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}

// ---- what nvcc's code calls; declared nowhere public

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  KernelTable::instance().add_stub(stub, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, CUstream_st* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"
