// What fails in the phases of compressed calls: said in the log, and NCCL's result for it. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "base/log.h"
#include "base/status.h"
#include "collective/nccl/nccl_abi.h"

namespace onebit::nccl {

inline Result failed(cudaError_t error, const char* what, int device) {
  log(LogLevel::kWarn, "{} on CUDA device {}: {}", what, device, cudaGetErrorString(error));
  return kUnhandledCudaError;
}
/// NCCL's result for what has failed on a way of our own.
inline Result result_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kSuccess;
    case Code::kRemoteError:
    case Code::kTimeout:
      return kRemoteError;
    case Code::kInvalidUsage:
    case Code::kAborted:
      return kInvalidUsage;
    default:
      return kSystemError;
  }
}
inline Result failed(const Status& status, const char* what) {
  log(LogLevel::kWarn, "{}: {}", what, status.message());
  return result_of(status);
}
inline Result failed(Result result, const char* what, const Functions& nccl) {
  log(LogLevel::kWarn, "{}: {}", what, nccl.error_string(result));
  return result;
}

/// Calls body() within one NCCL group; the group is ended whatever it returns.
template <typename Body>
Result in_group(const Functions& nccl, Body body) {
  if (const Result result = nccl.group_start(); result != kSuccess) return result;
  const Result inside = body();
  const Result outside = nccl.group_end();
  return inside != kSuccess ? inside : outside;
}

}  // namespace onebit::nccl
