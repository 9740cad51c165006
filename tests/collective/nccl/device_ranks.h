// Ranks whose communicators run allreduces in 1 bit, as threads over the stand-in for NCCL.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "collective/nccl/host_wire.h"
#include "collective/nccl/nccl_communicator.h"
#include "cuda_cpu/nccl_ranks.h"
#include "tensor.h"

namespace onebit::nccl {

/// The functions of the NCCL that the test is linked with.
inline Functions linked_nccl() {
  Functions functions;
  functions.group_start = [] { return static_cast<Result>(ncclGroupStart()); };
  functions.group_end = [] { return static_cast<Result>(ncclGroupEnd()); };
  functions.send = [](const void* buffer, std::size_t count, Type type, int peer, Comm comm,
                      cudaStream_t stream) {
    return static_cast<Result>(ncclSend(buffer, count, static_cast<ncclDataType_t>(type), peer,
                                        reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.receive = [](void* buffer, std::size_t count, Type type, int peer, Comm comm,
                         cudaStream_t stream) {
    return static_cast<Result>(ncclRecv(buffer, count, static_cast<ncclDataType_t>(type), peer,
                                        reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.all_gather = [](const void* send, void* receive, std::size_t count, Type type, Comm comm,
                            cudaStream_t stream) {
    return static_cast<Result>(ncclAllGather(send, receive, count, static_cast<ncclDataType_t>(type),
                                             reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.reduce_scatter = [](const void* send, void* receive, std::size_t count, Type type, Op op,
                                Comm comm, cudaStream_t stream) {
    return static_cast<Result>(ncclReduceScatter(send, receive, count, static_cast<ncclDataType_t>(type),
                                                 static_cast<ncclRedOp_t>(op),
                                                 reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.reduce = [](const void* send, void* receive, std::size_t count, Type type, Op op, int root,
                        Comm comm, cudaStream_t stream) {
    return static_cast<Result>(ncclReduce(send, receive, count, static_cast<ncclDataType_t>(type),
                                          static_cast<ncclRedOp_t>(op), root,
                                          reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.broadcast = [](const void* send, void* receive, std::size_t count, Type type, int root, Comm comm,
                           cudaStream_t stream) {
    return static_cast<Result>(ncclBroadcast(send, receive, count, static_cast<ncclDataType_t>(type), root,
                                             reinterpret_cast<ncclComm_t>(comm), stream));
  };
  functions.all_reduce = [](const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,
                            cudaStream_t stream) {
    return static_cast<Result>(ncclAllReduce(send, receive, count, static_cast<ncclDataType_t>(type),
                                             static_cast<ncclRedOp_t>(op), reinterpret_cast<ncclComm_t>(comm),
                                             stream));
  };
  functions.split = [](Comm comm, int color, int key, Comm* made, void*) {
    return static_cast<Result>(ncclCommSplit(reinterpret_cast<ncclComm_t>(comm), color, key,
                                             reinterpret_cast<ncclComm_t*>(made), nullptr));
  };
  functions.destroy = [](Comm comm) {
    return static_cast<Result>(ncclCommDestroy(reinterpret_cast<ncclComm_t>(comm)));
  };
  functions.abort = [](Comm comm) {
    return static_cast<Result>(ncclCommAbort(reinterpret_cast<ncclComm_t>(comm)));
  };
  functions.async_error = [](Comm comm, Result* error) {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(reinterpret_cast<ncclComm_t>(comm), &found);
    *error = static_cast<Result>(found);
    return static_cast<Result>(result);
  };
  functions.error_string = [](Result result) {
    return ncclGetErrorString(static_cast<ncclResult_t>(result));
  };
  return functions;
}

/// From now on a transport of ours carries the communicators' messages instead of NCCL, over loopback.
/// Collective.
inline void carry_by_transport(const std::vector<NcclCommunicator*>& communicators, const char* name) {
  Settings settings;
  settings.transport = name;
  settings.socket_ifname = "lo";
  settings.timeout = std::chrono::seconds(60);
  ASSERT_EQ(HostWire::make(communicators, settings), kSuccess);
}
/// The same by the one that ONEBIT_TEST_TRANSPORT names, if it is set.
inline void carry_by_test_transport(const std::vector<NcclCommunicator*>& communicators) {
  if (const char* const name = std::getenv("ONEBIT_TEST_TRANSPORT"); name != nullptr)
    carry_by_transport(communicators, name);
}

struct DeviceRank {
  cuda_cpu::NcclRank nccl;
  std::unique_ptr<NcclCommunicator> communicator;
};

/// Runs `body` on `ranks` threads. `options` has what does not differ between ranks.
inline void run_device_ranks(int ranks, CommunicatorOptions options, const Functions& nccl,
                             const std::function<void(DeviceRank&)>& body) {
  cuda_cpu::run_nccl_ranks(ranks, [&](cuda_cpu::NcclRank& here) {
    CommunicatorOptions own = options;
    own.comm = reinterpret_cast<Comm>(here.comm);
    own.nccl = nccl;
    own.device = here.rank;
    own.codec.rank = static_cast<unsigned>(here.rank);
    own.codec.ranks = static_cast<unsigned>(ranks);
    auto made = NcclCommunicator::create(own);
    ASSERT_TRUE(made.ok()) << made.status().message();
    DeviceRank rank{here, std::move(*made)};
    carry_by_test_transport({rank.communicator.get()});
    body(rank);
    EXPECT_CUDA(cudaStreamSynchronize(here.stream));
  });
}

inline void run_device_ranks(int ranks, const CommunicatorOptions& options,
                             const std::function<void(DeviceRank&)>& body) {
  run_device_ranks(ranks, options, linked_nccl(), body);
}

}  // namespace onebit::nccl
