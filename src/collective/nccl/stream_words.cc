#include "collective/nccl/stream_words.h"

#include <cuda.h>

#include "base/log.h"
#include "collective/nccl/stream_kernels.h"

namespace onebit::nccl {
namespace {

/// The driver's interface whose functions are looked up.
constexpr unsigned kDriverVersion = 12000;

cudaError_t result_of(int result) {
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

}  // namespace

void StreamWords::find_operations(cudaStream_t stream) {
  const auto find = [](const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult state{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &state);
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess && state == cudaDriverEntryPointSuccess ? reinterpret_cast<Operation>(found)
                                                                        : nullptr;
  };
  write_value_ = find("cuStreamWriteValue32");
  wait_value_ = find("cuStreamWaitValue32");
  const bool work = write_value_ != nullptr && wait_value_ != nullptr && signal(stream, 0) == cudaSuccess &&
                    stop(stream, 0) == cudaSuccess;
  if (work) return;
  write_value_ = wait_value_ = nullptr;
  log(LogLevel::kInfo, "the driver has no stream memory operations: kernels of one thread wait for the host");
}

onebit::Result<std::unique_ptr<StreamWords>> StreamWords::create(cudaStream_t stream) {
  std::unique_ptr<StreamWords> made(new StreamWords);
  made->words_ = PinnedMemory(2 * kHost * sizeof(std::uint32_t));
  if (made->words_.data() == nullptr) return Status(Code::kSystemError, "no pinned host memory is left");
  made->set_host(0);
  made->find_operations(stream);
  return made;
}

cudaError_t StreamWords::signal(cudaStream_t stream, std::uint32_t number) const {
  if (write_value_ == nullptr) return launch_write(device_word(0), number, stream);
  return result_of(write_value_(stream, reinterpret_cast<unsigned long long>(device_word(0)), number,
                                CU_STREAM_WRITE_VALUE_DEFAULT));
}

cudaError_t StreamWords::stop(cudaStream_t stream, std::uint32_t number) const {
  if (wait_value_ == nullptr) return launch_wait(device_word(kHost), number, stream);
  return result_of(wait_value_(stream, reinterpret_cast<unsigned long long>(device_word(kHost)), number,
                               CU_STREAM_WAIT_VALUE_GEQ));
}

}  // namespace onebit::nccl
