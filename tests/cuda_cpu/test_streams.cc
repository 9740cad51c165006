#include "cuda_cpu/test_streams.h"

#include <cuda.h>

#include <cstdint>

namespace onebit::cuda_cpu {
namespace {

/// The driver's function, fetched as a library has to that does not link to libcuda.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result));
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  return reinterpret_cast<Function>(function);
}
using StreamValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

}  // namespace

StreamGate::StreamGate() {
  EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, cudaHostAllocMapped));
  __atomic_store_n(word_, 0U, __ATOMIC_RELEASE);
}
StreamGate::~StreamGate() {
  open();
  EXPECT_CUDA(cudaFreeHost(word_));
}
void StreamGate::stop(cudaStream_t stream) const {
  static const auto wait = driver_function<StreamValue>("cuStreamWaitValue32");
  EXPECT_EQ(wait(stream, reinterpret_cast<std::uintptr_t>(word_), 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
}
void StreamGate::open_by(cudaStream_t stream) const {
  static const auto write = driver_function<StreamValue>("cuStreamWriteValue32");
  EXPECT_EQ(write(stream, reinterpret_cast<std::uintptr_t>(word_), 1, 0), CUDA_SUCCESS);
}

}  // namespace onebit::cuda_cpu
