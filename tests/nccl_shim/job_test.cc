// A job of several processes under the shim gives the bytes of the simulation: on the stand-ins, and by
// tests/gpu/run on a GPU with NCCL itself. With ONEBIT_COMPRESS=tag=grad* and ONEBIT_MIN_SIZE=1K.
#include <gtest/gtest.h>

#include "rank_process.h"

namespace onebit::shim {
namespace {

struct Kind {
  std::size_t count;
  DataType type;
  ReduceOp op;
};
constexpr Kind kKinds[] = {{1'000'003, DataType::kFloat32, ReduceOp::kAvg},
                           {40'000, DataType::kFloat32, ReduceOp::kSum},
                           {123'457, DataType::kFloat16, ReduceOp::kAvg},
                           {65'536, DataType::kBFloat16, ReduceOp::kSum}};
constexpr std::size_t kCalls = 3;

std::vector<std::byte> input_of(const Kind& kind, std::size_t rank, std::size_t call) {
  return input(kind.type, kind.count, 1000 * rank + call);
}

/// 0 when every call of every kind gives the simulation's bytes.
int compress_all_kinds(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) return 2;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 3;
  const auto all = static_cast<std::size_t>(ranks);
  int tag = 0;
  for (const Kind& kind : kKinds) {
    Simulation simulation(all, kind.count, kind.type, kind.op, {});
    const Tensor tensor(kind.count * size_of(kind.type));
    const std::string name = "grad" + std::to_string(tag++);
    for (std::size_t call = 0; call < kCalls; ++call) {
      std::vector<std::vector<std::byte>> inputs;
      for (std::size_t r = 0; r < all; ++r) inputs.push_back(input_of(kind, r, call));
      tensor.write(inputs[static_cast<std::size_t>(rank)], stream);
      onebitScopeBegin(name.c_str());
      const ncclResult_t result =
          ncclAllReduce(tensor.data(), tensor.data(), kind.count, static_cast<ncclDataType_t>(kind.type),
                        static_cast<ncclRedOp_t>(kind.op), comm, stream);
      onebitScopeEnd();
      if (result != ncclSuccess) return 4;
      if (tensor.read(stream) != simulation.call(inputs)) return 1;
    }
  }
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 5;
}

TEST(ShimJob, TaggedCallsOfProcessesGiveTheBytesOfTheSimulation) {
  for (const int ranks : {2, 4}) {
    for (const Outcome& outcome : run_rank_processes(ranks, {}, compress_all_kinds)) {
      EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome.output;
    }
  }
}

TEST(ShimJob, UntaggedCallsOfProcessesAreExact) {
  for (const int ranks : {2, 4}) {
    const auto outcomes = run_rank_processes(
        ranks, {}, [](int rank, int all, ncclUniqueId id) { return sum_exactly(rank, all, id, 300'000, 3); });
    for (const Outcome& outcome : outcomes)
      EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome.output;
  }
}

}  // namespace
}  // namespace onebit::shim
