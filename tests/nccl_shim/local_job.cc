// A job as a module: it is linked with NCCL, and whoever opens it with RTLD_LOCAL has an NCCL that no global
// lookup finds. Its one function says whether an allreduce between two devices ended well, and whether it was
// exact.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <vector>

extern "C" __attribute__((visibility("default"))) int onebit_local_job() {
  constexpr std::size_t kCount = 20000;
  ncclComm_t comms[2];
  const int devices[2] = {0, 1};
  if (ncclCommInitAll(comms, 2, devices) != ncclSuccess) return 2;
  cudaStream_t streams[2];
  float* buffers[2];
  for (int r = 0; r < 2; ++r) {
    const std::vector<float> ones(kCount, 1.0F);
    if (cudaSetDevice(r) != cudaSuccess) return 3;
    if (cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking) != cudaSuccess) return 3;
    if (cudaMalloc(reinterpret_cast<void**>(&buffers[r]), 4 * kCount) != cudaSuccess) return 3;
    if (cudaMemcpy(buffers[r], ones.data(), 4 * kCount, cudaMemcpyHostToDevice) != cudaSuccess) return 3;
  }
  if (ncclGroupStart() != ncclSuccess) return 4;
  for (int r = 0; r < 2; ++r) {
    if (ncclAllReduce(buffers[r], buffers[r], kCount, ncclFloat, ncclSum, comms[r], streams[r]) !=
        ncclSuccess)
      return 4;
  }
  if (ncclGroupEnd() != ncclSuccess) return 4;
  for (int r = 0; r < 2; ++r) {
    float sum = 0;
    if (cudaMemcpyAsync(&sum, buffers[r], 4, cudaMemcpyDeviceToHost, streams[r]) != cudaSuccess) return 5;
    if (cudaStreamSynchronize(streams[r]) != cudaSuccess || sum != 2.0F) return 5;
    if (ncclCommDestroy(comms[r]) != ncclSuccess) return 6;
  }
  return 0;
}
