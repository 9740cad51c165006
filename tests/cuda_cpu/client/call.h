// Calls of CUDA and NCCL whose failure ends the rank: an exception with the call and the library's words.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <stdexcept>

namespace onebit::nccl_client {

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}
/// ncclInProgress is no failure: with a non-blocking communicator, `await` follows.
inline void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw std::runtime_error(
      fmt::format("{}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}
#define ONEBIT_CALL(call) ::onebit::nccl_client::check(call, #call)

}  // namespace onebit::nccl_client
