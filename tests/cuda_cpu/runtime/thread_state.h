// What CUDA keeps for each host thread: the current device, the last error, and what it may not do just now.
#pragma once

#include <cuda_runtime_api.h>

namespace onebit::cuda_cpu {

struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;  ///< in which CUDA may not be called
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};
ThreadState& thread_state();

/// Keeps an error for cudaGetLastError and gives it back.
inline cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) thread_state().last_error = error;
  return error;
}

}  // namespace onebit::cuda_cpu
