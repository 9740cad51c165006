// Ranks as threads, each with a device and both kinds of communicator: the stand-in for NCCL's and onebit's
// own.
#pragma once

#include "cuda_cpu/nccl_ranks.h"
#include "optimizer_twins.h"

namespace onebit::testing {

struct TwinRank {
  int rank;
  int ranks;
  onebitComm_t comm;
  ncclComm_t& nccl_comm;  ///< null when the body has ended it
  cudaStream_t stream;

  std::unique_ptr<OptimizerTwins> twins(const onebitOptimizerConfig_t& config, const Tensors& tensors,
                                        const char* settings = nullptr) const {
    auto made = std::make_unique<OptimizerTwins>(config, tensors, rank, comm, nccl_comm, stream, settings);
    EXPECT_TRUE(succeeded(made->made()));
    return made;
  }
};

/// Runs `body` on `ranks` threads.
inline void run_twin_ranks(int ranks, const std::function<void(TwinRank&)>& body) {
  ::setenv("ONEBIT_SOCKET_IFNAME", "lo", 1);
  onebitUniqueId id;
  ASSERT_TRUE(succeeded(onebitGetUniqueId(&id)));
  const std::string settings = loopback_settings();
  cuda_cpu::run_nccl_ranks(ranks, [&](cuda_cpu::NcclRank& here) {
    const onebitConfig_t config{sizeof(onebitConfig_t), "test", settings.c_str()};
    onebitComm_t comm = nullptr;
    ASSERT_TRUE(succeeded(onebitCommInitRankConfig(&comm, ranks, id, here.rank, &config)));
    TwinRank rank{here.rank, ranks, comm, here.comm, here.stream};
    body(rank);
    EXPECT_TRUE(succeeded(onebitCommDestroy(comm)));
  });
}

}  // namespace onebit::testing
