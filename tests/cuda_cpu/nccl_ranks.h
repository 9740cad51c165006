// Ranks of the stand-in for NCCL as threads of a test: each with a device, a stream and a communicator of its
// own.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_cpu/test_streams.h"

namespace onebit::cuda_cpu {

inline ::testing::AssertionResult succeeded(ncclResult_t result) {
  if (result == ncclSuccess) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << ncclGetErrorString(result) << ": " << ncclGetLastError(nullptr);
}
#define EXPECT_NCCL(call) EXPECT_TRUE(::onebit::cuda_cpu::succeeded(call))

struct NcclRank {
  int rank;
  int ranks;
  ncclComm_t comm;
  cudaStream_t stream;
};

/// Runs `body` on `ranks` threads and joins them. `body` may null the communicator, when it has ended it
/// itself.
inline void run_nccl_ranks(int ranks, const std::function<void(NcclRank&)>& body) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeded(ncclGetUniqueId(&id)));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
      EXPECT_CUDA(cudaSetDevice(rank));
      const TestStream stream;
      NcclRank here{rank, ranks, nullptr, stream};
      ASSERT_TRUE(succeeded(ncclCommInitRank(&here.comm, ranks, id, rank)));
      body(here);
      stream.synchronize();
      EXPECT_NCCL(ncclCommDestroy(here.comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace onebit::cuda_cpu
