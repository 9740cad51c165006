// The stand-in for NCCL: groups, streams, splits, graphs, non-blocking communicators, abort, and calls that
// are refused.
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <thread>
#include <vector>

#include "cuda_cpu/nccl_ranks.h"

namespace onebit::cuda_cpu {
namespace {

ncclResult_t sum(const DeviceFloats& data, std::size_t count, const NcclRank& here) {
  return ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, here.comm, here.stream);
}

/// Asks until the communicator is ready, as a job with a non-blocking one does.
ncclResult_t await(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return state;
}

TEST(NcclGroup, OneThreadDrivesSeveralRanks) {
  constexpr int kRanks = 4;
  ncclComm_t comms[kRanks];
  EXPECT_NCCL(ncclCommInitAll(comms, kRanks, nullptr));
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    int seen = -1;
    EXPECT_NCCL(ncclCommUserRank(comms[rank], &seen));
    EXPECT_EQ(seen, rank);
    EXPECT_NCCL(ncclCommCuDevice(comms[rank], &seen));
    EXPECT_EQ(seen, rank);
    EXPECT_NCCL(ncclCommCount(comms[rank], &seen));
    EXPECT_EQ(seen, kRanks);
  }
  std::vector<float*> data(kRanks);
  std::vector<cudaStream_t> streams(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&streams[static_cast<std::size_t>(rank)], cudaStreamNonBlocking));
    EXPECT_CUDA(
        cudaMalloc(reinterpret_cast<void**>(&data[static_cast<std::size_t>(rank)]), 100 * sizeof(float)));
    const std::vector<float> values(100, static_cast<float>(rank));
    EXPECT_CUDA(cudaMemcpy(data[static_cast<std::size_t>(rank)], values.data(), 400, cudaMemcpyHostToDevice));
  }
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupStart());
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_NCCL(ncclAllReduce(data[rank], data[rank], 100, ncclFloat, ncclSum, comms[rank], streams[rank]));
  }
  EXPECT_NCCL(ncclGroupEnd());
  for (const cudaStream_t stream : streams)
    EXPECT_CUDA(cudaStreamQuery(stream)) << "started before the outer end";
  EXPECT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    std::vector<float> values(100);
    EXPECT_CUDA(cudaMemcpyAsync(values.data(), data[at], 400, cudaMemcpyDeviceToHost, streams[at]));
    EXPECT_CUDA(cudaStreamSynchronize(streams[at]));
    for (const float value : values) ASSERT_EQ(value, 6.0F);
    EXPECT_CUDA(cudaFree(data[at]));
    EXPECT_CUDA(cudaStreamDestroy(streams[at]));
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
  }
}

TEST(NcclGroup, AnErrorInsideFailsTheWholeGroup) {
  run_nccl_ranks(1, [](const NcclRank& here) {
    const DeviceFloats data(10, 2.0F);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(sum(data, 10, here));
    EXPECT_EQ(ncclAllReduce(nullptr, data.data(), 10, ncclFloat, ncclSum, here.comm, here.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_NCCL(sum(data, 10, here));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "there is no group";
  });
}

TEST(NcclStreams, OperationsOfOneCommunicatorRunInTheOrderOfTheirCallsInWhateverStream) {
  run_nccl_ranks(2, [](const NcclRank& here) {
    const TestStream other;
    const StreamGate gate;
    const DeviceFloats data(10, 1.0F);
    if (here.rank == 0) gate.stop(here.stream);
    EXPECT_NCCL(sum(data, 10, here));
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, ncclSum, here.comm, other));
    if (here.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
      gate.open();
    }
    for (const float value : data.read(other)) EXPECT_EQ(value, 4.0F);
  });
}

TEST(NcclStreams, AGroupOverTwoStreamsIsOrderedInBoth) {
  run_nccl_ranks(2, [](const NcclRank& here) {
    const TestStream other;
    const DeviceFloats first(10, 1.0F);
    const DeviceFloats second(10, 2.0F);
    EXPECT_CUDA(cudaMemsetAsync(second.data(), 0, 10 * sizeof(float), other));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(sum(first, 10, here));
    EXPECT_NCCL(ncclAllReduce(second.data(), second.data(), 10, ncclFloat, ncclSum, here.comm, other));
    EXPECT_NCCL(ncclGroupEnd());
    for (const float value : second.read(other)) EXPECT_EQ(value, 0.0F);
    for (const float value : first.read(here.stream)) EXPECT_EQ(value, 2.0F);
  });
}

TEST(NcclSplit, RanksOfOneColourMeetInTheOrderOfTheirKeys) {
  run_nccl_ranks(5, [](const NcclRank& here) {
    for (int round = 0; round < 2; ++round) {
      const int color = here.rank == 4 ? NCCL_SPLIT_NOCOLOR : here.rank % 2;
      ncclComm_t part = here.comm;
      EXPECT_NCCL(ncclCommSplit(here.comm, color, -here.rank, &part, nullptr));
      if (here.rank == 4) {
        EXPECT_EQ(part, nullptr);
        continue;
      }
      int rank = -1;
      int ranks = -1;
      EXPECT_NCCL(ncclCommUserRank(part, &rank));
      EXPECT_NCCL(ncclCommCount(part, &ranks));
      EXPECT_EQ(ranks, 2);
      EXPECT_EQ(rank, here.rank < 2 ? 1 : 0);
      const DeviceFloats data(10, static_cast<float>(here.rank));
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, ncclSum, part, here.stream));
      for (const float value : data.read(here.stream)) EXPECT_EQ(value, color == 0 ? 2.0F : 4.0F);
      EXPECT_NCCL(ncclCommDestroy(part));
    }
  });
}

TEST(NcclGraph, ACapturedAllreduceRunsAtEachLaunch) {
  run_nccl_ranks(2, [](const NcclRank& here) {
    const DeviceFloats data(1000, 1.0F);
    EXPECT_CUDA(cudaStreamBeginCapture(here.stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_NCCL(sum(data, 1000, here));
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(here.stream, &graph));
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; ++i) EXPECT_CUDA(cudaGraphLaunch(executable, here.stream));
    for (const float value : data.read(here.stream)) EXPECT_EQ(value, 8.0F);
    EXPECT_CUDA(cudaGraphExecDestroy(executable));
  });
}

TEST(NcclNonBlocking, NothingStartsUntilTheJobAsks) {
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const TestStream stream;
      const DeviceFloats data(10, 1.0F);
      NcclRank here{rank, 2, nullptr, stream};
      const ncclResult_t made = ncclCommInitRankConfig(&here.comm, 2, id, rank, &config);
      EXPECT_TRUE(made == ncclInProgress || made == ncclSuccess);
      EXPECT_EQ(await(here.comm), ncclSuccess);
      EXPECT_EQ(sum(data, 10, here), ncclInProgress);
      stream.synchronize();
      EXPECT_EQ(data.read(stream)[0], 1.0F) << "not asked for yet";
      EXPECT_EQ(sum(data, 10, here), ncclInvalidArgument) << "the one before is not under way";
      EXPECT_EQ(await(here.comm), ncclSuccess);
      EXPECT_EQ(data.read(stream)[0], 2.0F);
      EXPECT_NCCL(ncclCommDestroy(here.comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclAbort, AWaitingRankEndsAndItsPeersHearOfIt) {
  run_nccl_ranks(2, [](NcclRank& here) {
    const DeviceFloats data(10, 1.0F);
    if (here.rank == 0) {
      EXPECT_NCCL(ncclRecv(data.data(), 10, ncclFloat, 1, here.comm, here.stream));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(cudaStreamQuery(here.stream), cudaErrorNotReady);
      EXPECT_NCCL(ncclCommAbort(here.comm));
      EXPECT_CUDA(cudaStreamSynchronize(here.stream));
      EXPECT_EQ(sum(data, 10, here), ncclInvalidArgument) << "the communicator is gone";
    } else {
      EXPECT_NCCL(sum(data, 10, here));
      EXPECT_CUDA(cudaStreamSynchronize(here.stream));
      ncclResult_t error = ncclSuccess;
      EXPECT_NCCL(ncclCommGetAsyncError(here.comm, &error));
      EXPECT_EQ(error, ncclRemoteError);
      EXPECT_EQ(sum(data, 10, here), ncclRemoteError);
      EXPECT_NCCL(ncclCommAbort(here.comm));
    }
    here.comm = nullptr;
  });
}

TEST(NcclArguments, WhatCannotBeRightIsRefused) {
  run_nccl_ranks(1, [](const NcclRank& here) {
    const DeviceFloats data(10, 1.0F);
    std::vector<float> host(10);
    const auto allreduce = [&](const void* send, void* receive, ncclDataType_t type, int op) {
      return ncclAllReduce(send, receive, 10, type, static_cast<ncclRedOp_t>(op), here.comm, here.stream);
    };
    EXPECT_EQ(allreduce(host.data(), data.data(), ncclFloat, ncclSum), ncclInvalidArgument);
    EXPECT_EQ(allreduce(data.data(), host.data(), ncclFloat, ncclSum), ncclInvalidArgument);
    EXPECT_EQ(allreduce(data.data(), data.data(), ncclNumTypes, ncclSum), ncclInvalidArgument);
    EXPECT_EQ(allreduce(data.data(), data.data(), ncclFloat, ncclNumOps + 3), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(data.data(), data.data(), 10, ncclFloat, 1, here.comm, here.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, ncclSum, nullptr, here.stream),
              ncclInvalidArgument);
    EXPECT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, here.comm, here.stream));
    EXPECT_CUDA(cudaSetDevice(1));
    {
      const TestStream elsewhere;
      const DeviceFloats far(10, 1.0F);
      EXPECT_EQ(allreduce(far.data(), far.data(), ncclFloat, ncclSum), ncclInvalidArgument);
      EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, ncclSum, here.comm, elsewhere),
                ncclInvalidArgument);
    }
    EXPECT_CUDA(cudaSetDevice(0));
    ncclComm_t none = nullptr;
    ncclUniqueId id;
    EXPECT_NCCL(ncclGetUniqueId(&id));
    EXPECT_EQ(ncclCommInitRank(&none, 2, id, 2), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&none, 0, id, 0), ncclInvalidArgument);
  });
}

}  // namespace
}  // namespace onebit::cuda_cpu
