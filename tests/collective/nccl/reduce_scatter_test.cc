// Reduce-scatters in 1 bit over NCCL against a simulation of all ranks: the same bytes, call after call.
#include <gtest/gtest.h>

#include "device_ranks.h"
#include "support/scatter_simulation.h"
#include "support/simulation.h"

namespace onebit::nccl {
namespace {

using testing::input;
using testing::ScatterSimulation;

struct Case {
  int ranks;
  std::size_t block;  ///< elements that each rank gets
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kAvg;
  codec::Parameters parameters = {};
  std::size_t chunk = 0;
  bool in_place = true;
};

void expect_simulated(const Case& c) {
  SCOPED_TRACE(formatted("{} ranks, {} x {} {} each, block {}, chunk {}", c.ranks, c.block, name_of(c.type),
                         name_of(c.op), c.parameters.block, c.chunk));
  constexpr std::size_t kCalls = 3;
  const auto ranks = static_cast<std::size_t>(c.ranks);
  std::vector<std::vector<std::vector<std::byte>>> inputs(kCalls), expected;
  ScatterSimulation simulation(ranks, c.block, c.type, c.op, c.parameters);
  for (std::size_t call = 0; call < kCalls; ++call) {
    for (std::size_t r = 0; r < ranks; ++r)
      inputs[call].push_back(input(c.type, ranks * c.block, 1000 * r + call));
    expected.push_back(simulation.call(inputs[call]));
  }
  CommunicatorOptions options;
  options.chunk = c.chunk;
  options.codec.parameters = c.parameters;
  run_device_ranks(c.ranks, options, [&](DeviceRank& here) {
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    const std::size_t bytes = c.block * size_of(c.type);
    const Tensor send(ranks * bytes), separate(bytes);
    void* const receive = c.in_place ? static_cast<std::byte*>(send.data()) + rank * bytes : separate.data();
    for (std::size_t call = 0; call < kCalls; ++call) {
      send.write(inputs[call][rank], here.nccl.stream);
      Request request{here.communicator.get(), send.data(), receive, {c.block, true}, c.type, c.op, "t",
                      here.nccl.stream,        false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      ASSERT_TRUE(request.compressed);
      std::vector<std::byte> found(bytes);
      EXPECT_CUDA(cudaMemcpyAsync(found.data(), receive, bytes, cudaMemcpyDeviceToHost, here.nccl.stream));
      EXPECT_CUDA(cudaStreamSynchronize(here.nccl.stream));
      ASSERT_EQ(found, expected[call][rank]) << "call " << call;
    }
  });
}

TEST(NcclReduceScatter, GivesTheBytesOfTheSimulationForEveryNumberOfRanks) {
  for (const int ranks : {2, 3, 7, 8}) {
    for (const std::size_t block : {std::size_t{1}, std::size_t{7}, std::size_t{997}, std::size_t{5000}}) {
      expect_simulated({.ranks = ranks, .block = block, .in_place = block % 2 == 0});
    }
  }
}

TEST(NcclReduceScatter, GivesTheBytesOfTheSimulationForEveryTypeAndOpInPlaceAndNot) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const bool in_place : {false, true}) {
        expect_simulated({.ranks = 3, .block = 4099, .type = type, .op = op, .in_place = in_place});
      }
    }
  }
}

TEST(NcclReduceScatter, GivesTheBytesOfTheSimulationForEveryBlockAndInChunks) {
  for (const std::uint32_t block : {256u, 1024u, 4096u, codec::kWhole}) {
    expect_simulated({.ranks = 2, .block = 30001, .parameters = {block, codec::Scale::kMean}});
  }
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{5000}}) {
    expect_simulated({.ranks = 3, .block = 9001, .chunk = chunk});
  }
}

TEST(NcclReduceScatter, SharesACommunicatorWithAllreducesOfAsManyElements) {
  constexpr std::size_t kBlock = 3000;
  run_device_ranks(2, {}, [](DeviceRank& here) {
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    ScatterSimulation scattered(2, kBlock, DataType::kFloat32, ReduceOp::kSum, {});
    testing::Simulation reduced(2, kBlock, DataType::kFloat32, ReduceOp::kSum, {});
    const Tensor send(8 * kBlock), block(4 * kBlock), tensor(4 * kBlock);
    for (std::size_t call = 0; call < 3; ++call) {
      const std::vector<std::vector<std::byte>> whole = {input(DataType::kFloat32, 2 * kBlock, call),
                                                         input(DataType::kFloat32, 2 * kBlock, 50 + call)};
      const std::vector<std::vector<std::byte>> part = {input(DataType::kFloat32, kBlock, 100 + call),
                                                        input(DataType::kFloat32, kBlock, 150 + call)};
      send.write(whole[rank], here.nccl.stream);
      tensor.write(part[rank], here.nccl.stream);
      Request requests[] = {{here.communicator.get(),
                             send.data(),
                             block.data(),
                             {kBlock, true},
                             DataType::kFloat32,
                             ReduceOp::kSum,
                             "",
                             here.nccl.stream,
                             false},
                            {here.communicator.get(), tensor.data(), tensor.data(), kBlock,
                             DataType::kFloat32, ReduceOp::kSum, "", here.nccl.stream, false}};
      ASSERT_EQ(run(requests), kSuccess);
      EXPECT_EQ(block.read(here.nccl.stream), scattered.call(whole)[rank]) << call;
      EXPECT_EQ(tensor.read(here.nccl.stream), reduced.call(part)) << call;
    }
  });
}

}  // namespace
}  // namespace onebit::nccl
