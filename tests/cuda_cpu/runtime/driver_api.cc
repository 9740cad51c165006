// The part of the driver's interface that is used beside the run time: stream memory operations, which a
// library fetches by cudaGetDriverEntryPointByVersion, and what kind of memory an address is.
//
// A wait polls its word, so the host, another stream or another process can let it go on.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/runtime/devices.h"
#include "cuda_cpu/runtime/memory_table.h"
#include "cuda_cpu/runtime/thread_state.h"

using namespace onebit::cuda_cpu;

namespace {

constexpr useconds_t kPoll = 20;

template <typename Word>
bool holds(Word seen, Word value, unsigned flags) {
  using Signed = std::make_signed_t<Word>;
  switch (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(seen - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & value) != 0;
    default:
      return static_cast<Word>(~(seen | value)) != 0;
  }
}

CUresult result_of(cudaError_t error) {
  if (error == cudaSuccess) return CUDA_SUCCESS;
  return error == cudaErrorInvalidResourceHandle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

template <typename Word>
bool usable(CUdeviceptr address) {
  auto* const word = reinterpret_cast<Word*>(address);
  return address % sizeof(Word) == 0 && MemoryTable::instance().accessible(word, sizeof(Word), true);
}

template <typename Word>
CUresult wait_value(CUstream stream, CUdeviceptr address, Word value, unsigned flags) {
  if (!usable<Word>(address)) return CUDA_ERROR_INVALID_VALUE;
  auto* const word = reinterpret_cast<Word*>(address);
  return result_of(enqueue_wait(Devices::instance().stream(stream), [=] {
    for (;;) {
      {
        const DeviceAccess access;
        if (holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags)) break;
      }
      ::usleep(kPoll);
    }
    acquire(word);
  }));
}

template <typename Word>
CUresult write_value(CUstream stream, CUdeviceptr address, Word value) {
  if (!usable<Word>(address)) return CUDA_ERROR_INVALID_VALUE;
  auto* const word = reinterpret_cast<Word*>(address);
  return result_of(enqueue(Devices::instance().stream(stream), [=] {
    release(word);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }));
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  // Both lists number what they share alike.
  const bool stream_operations = attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS ||
                                 attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR;
  if (stream_operations) {
    *value = 1;
    return CUDA_SUCCESS;
  }
  return result_of(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto allocation = MemoryTable::instance().find(reinterpret_cast<const void*>(address));
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) =
          allocation->type == cudaMemoryTypeHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(value) = allocation->type == cudaMemoryTypeManaged;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value<std::uint32_t>(stream, address, value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait_value<cuuint64_t>(stream, address, value, flags);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return write_value<std::uint32_t>(stream, address, value);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  return write_value<cuuint64_t>(stream, address, value);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  Dl_info own;
  ::dladdr(reinterpret_cast<void*>(&cudaGetDriverEntryPointByVersion), &own);
  void* const library = ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = ::dlsym(library, (std::string(symbol) + "_v2").c_str());
  if (*function == nullptr) *function = ::dlsym(library, symbol);
  ::dlclose(library);
  const bool found = *function != nullptr;
  if (result != nullptr) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return report(found ? cudaSuccess : cudaErrorSymbolNotFound);
}

}  // extern "C"
