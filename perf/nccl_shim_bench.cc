// What a call costs that passes through libonebit-nccl.so: ncclAllReduce against NCCL's own function, which
// here returns at once. Run it as it is (every call passes through), and with ONEBIT_COMPRESS=all (each call
// is decided).
#include <benchmark/benchmark.h>

#include "collective/nccl/nccl_abi.h"

using onebit::nccl::Comm;
using onebit::nccl::Op;
using onebit::nccl::Result;
using onebit::nccl::Type;

// The NCCL that the shim finds in this program.
#define ONEBIT_REAL extern "C" __attribute__((visibility("default"))) Result
struct ncclComm {};
namespace {
ncclComm g_comm;
struct UniqueId {
  char bytes[128];
};
}  // namespace
ONEBIT_REAL pncclAllReduce(const void*, void*, std::size_t count, Type, Op, Comm, cudaStream_t) {
  benchmark::DoNotOptimize(count);
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclSend() {
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclRecv() {
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclCommCount(Comm, int* count) {
  *count = 1;
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclCommUserRank(Comm, int* rank) {
  *rank = 0;
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclCommCuDevice(Comm, int* device) {
  *device = 0;
  return onebit::nccl::kSuccess;
}
ONEBIT_REAL pncclCommInitAll(Comm* comms, int, const int*) {
  *comms = &g_comm;
  return onebit::nccl::kSuccess;
}

extern "C" Result ncclAllReduce(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t);
extern "C" Result ncclCommInitAll(Comm* comms, int devices, const int* list);

namespace {

template <Result (*kAllReduce)(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t)>
void call(benchmark::State& state) {
  Comm comm = nullptr;
  if (ncclCommInitAll(&comm, 1, nullptr) != onebit::nccl::kSuccess) {
    state.SkipWithError("ncclCommInitAll failed");
    return;
  }
  float buffer[8] = {};
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        kAllReduce(buffer, buffer, 8, onebit::nccl::kFloat32, onebit::nccl::kSum, comm, nullptr));
  }
}
BENCHMARK(call<pncclAllReduce>)->Name("NCCL's own");
BENCHMARK(call<ncclAllReduce>)->Name("through the shim");

}  // namespace

BENCHMARK_MAIN();
