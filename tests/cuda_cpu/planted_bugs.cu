// planted_bugs NAME [mended]: a program with one fault that a sanitizer has to find, or, mended, with none.
//
// It shows that the stand-in hides nothing from the sanitizers: CMake runs each fault in the build that must
// see it.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "cuda/launch.h"
#include "cuda_cpu/test_streams.h"

namespace onebit::cuda_cpu {
namespace {

constexpr unsigned kThreads = 64;

__global__ void reverse_block(float* data, bool synchronize) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = data[threadIdx.x];
  if (synchronize) __syncthreads();
  data[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}
__global__ void reverse_warps(float* data, bool synchronize) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = data[threadIdx.x];
  if (synchronize) __syncwarp();
  data[threadIdx.x] = shared[threadIdx.x / 32 * 32 + 31 - threadIdx.x % 32];
}
__global__ void count_blocks(unsigned* counter, bool atomically) {
  if (threadIdx.x > 0) return;
  if (atomically) {
    atomicAdd(counter, 1);
  } else {
    *counter += 1;
  }
}
__global__ void write_at(float* data, unsigned index) {
  if (threadIdx.x == 0) data[index] = 1;
}
__global__ void write_shared_at(float* data, unsigned offset) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x + offset] = 1;
  __syncthreads();
  data[threadIdx.x] = shared[threadIdx.x];
}
// Not inlined, so that nothing but the fence around the memory can tell.
__attribute__((noinline)) __device__ void write_through_pointer(float* pointer, unsigned index) {
  pointer[index] = 1;
}
__global__ void write_shared_by_pointer(float* data, unsigned offset) {
  __shared__ float shared[kThreads];
  if (threadIdx.x == 0) write_through_pointer(shared, kThreads - 1 + offset);
  __syncthreads();
  data[threadIdx.x] = threadIdx.x == kThreads - 1 ? shared[threadIdx.x] : 0;
}
__global__ void write_dynamic_shared_at(float* data, unsigned offset) {
  ONEBIT_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x + offset] = 1;
  __syncthreads();
  data[threadIdx.x] = shared[threadIdx.x];
}
__global__ void load_vector_at(float* data, unsigned offset) {
  if (threadIdx.x > 0) return;
  const float4 loaded = __ldg(reinterpret_cast<const float4*>(data + offset));
  data[0] = loaded.w;
}

/// Two streams write the same memory; `ordered`: the second waits for the first.
void use_two_streams(float* data, bool ordered) {
  const TestStream first;
  const TestStream second;
  const TestEvent event;
  EXPECT_CUDA(cu::launch(write_at, dim3(1), dim3(kThreads), 0, first, data, 3U));
  EXPECT_CUDA(cudaEventRecord(event, first));
  if (ordered) {
    EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));
  }
  EXPECT_CUDA(cu::launch(write_at, dim3(1), dim3(kThreads), 0, second, data, 3U));
  first.synchronize();
  second.synchronize();
}
/// The host reads pinned memory that a stream copies to; `waits`: after the stream.
void read_on_host(float* data, bool waits) {
  const TestStream stream;
  float* host = nullptr;
  EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host), kThreads * sizeof(float)));
  EXPECT_CUDA(cudaMemcpyAsync(host, data, kThreads * sizeof(float), cudaMemcpyDeviceToHost, stream));
  if (waits) stream.synchronize();
  std::printf("the host sees %g\n", static_cast<double>(host[3]));
  stream.synchronize();
  EXPECT_CUDA(cudaFreeHost(host));
}

template <typename Kernel, typename Argument>
void launch(Kernel kernel, float* data, Argument argument, std::size_t shared_bytes = 0) {
  EXPECT_CUDA(cu::launch(kernel, dim3(1), dim3(kThreads), shared_bytes, nullptr, data, argument));
}

using Fault = void (*)(float* data, bool mended);
const std::map<std::string, Fault> kFaults = {
    {"missing_syncthreads", [](float* data, bool mended) { launch(reverse_block, data, mended); }},
    {"missing_syncwarp", [](float* data, bool mended) { launch(reverse_warps, data, mended); }},
    {"race_between_blocks",
     [](float* data, bool mended) {
       EXPECT_CUDA(cu::launch(count_blocks, dim3(64), dim3(32), 0, nullptr, reinterpret_cast<unsigned*>(data),
                              mended));
     }},
    {"missing_wait_for_event", &use_two_streams},
    {"missing_synchronize", &read_on_host},
    {"global_overrun", [](float* data, bool mended) { launch(write_at, data, mended ? 0U : kThreads); }},
    {"shared_overrun", [](float* data, bool mended) { launch(write_shared_at, data, mended ? 0U : 1U); }},
    {"shared_overrun_by_pointer",
     [](float* data, bool mended) { launch(write_shared_by_pointer, data, mended ? 0U : 1U); }},
    {"dynamic_shared_overrun",
     [](float* data, bool mended) {
       launch(write_dynamic_shared_at, data, mended ? 0U : 1U, kThreads * sizeof(float));
     }},
    {"misaligned_load", [](float* data, bool mended) { launch(load_vector_at, data, mended ? 0U : 1U); }},
};

}  // namespace
}  // namespace onebit::cuda_cpu

int main(int argc, char** argv) {
  using namespace onebit::cuda_cpu;
  const auto fault = argc > 1 ? kFaults.find(argv[1]) : kFaults.end();
  if (fault == kFaults.end()) {
    std::fprintf(stderr, "planted_bugs NAME [mended]\n");
    return 2;
  }
  const bool mended = argc > 2 && std::strcmp(argv[2], "mended") == 0;
  const DeviceFloats data(kThreads);
  EXPECT_CUDA(cudaMemset(data.data(), 0, kThreads * sizeof(float)));
  EXPECT_CUDA(cudaDeviceSynchronize());
  fault->second(data.data(), mended);
  EXPECT_CUDA(cudaDeviceSynchronize());
  std::printf("%s ran to its end\n", fault->first.c_str());
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
