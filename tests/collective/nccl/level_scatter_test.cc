// Reduce-scatters in two levels against their definition: sums of nodes in full precision, which a simulation
// of as many ranks as there are nodes scatters among the ranks of one place.
#include <gtest/gtest.h>

#include <cstring>

#include "device_levels.h"
#include "support/scatter_simulation.h"
#include "support/simulation.h"

namespace onebit::nccl {
namespace {

using testing::input;
using testing::ScatterSimulation;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kCalls = 3;

struct Case {
  Hosts hosts;
  std::size_t block;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  const char* tag = "t";

  std::size_t ranks() const { return hosts.size(); }
  Bytes input_of(std::size_t rank, std::size_t call) const {
    return input(DataType::kFloat32, block * ranks(), 1000 * rank + call);
  }
};

/// What each rank gets, by call and rank.
std::vector<std::vector<Bytes>> defined(const Case& c) {
  std::vector<LevelPlace> places;
  for (unsigned rank = 0; rank < c.ranks(); ++rank) places.push_back(*place_of(c.hosts, rank));
  const LevelPlace& first = places.front();
  std::vector<ScatterSimulation> simulations;
  for (unsigned place = 0; place < first.size; ++place)
    simulations.emplace_back(first.nodes, c.block, DataType::kFloat32, c.op, codec::Parameters());
  std::vector<std::vector<Bytes>> results;
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::vector<std::vector<float>> sums(first.nodes, std::vector<float>(c.block * c.ranks()));
    for (std::size_t rank = 0; rank < c.ranks(); ++rank) {
      const Bytes bytes = c.input_of(rank, call);
      std::vector<float>& sum = sums[places[rank].node];
      const float factor = c.op == ReduceOp::kAvg ? 1.0F / static_cast<float>(first.size) : 1.0F;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        float x;
        std::memcpy(&x, bytes.data() + 4 * i, 4);
        sum[i] += x * factor;
      }
    }
    std::vector<Bytes>& result = results.emplace_back(c.ranks());
    for (unsigned place = 0; place < first.size; ++place) {
      std::vector<Bytes> inputs;
      for (const std::vector<float>& sum : sums) {
        Bytes& of_node = inputs.emplace_back(4 * c.block * first.nodes);
        for (unsigned node = 0; node < first.nodes; ++node) {
          std::memcpy(of_node.data() + 4 * c.block * node, sum.data() + c.block * first.rank(node, place),
                      4 * c.block);
        }
      }
      const auto blocks = simulations[place].call(inputs);
      for (unsigned node = 0; node < first.nodes; ++node) result[first.rank(node, place)] = blocks[node];
    }
  }
  return results;
}

void expect_defined(const std::vector<Case>& cases) {
  std::vector<std::vector<std::vector<Bytes>>> expected;
  for (const Case& c : cases) expected.push_back(defined(c));
  const Hosts& hosts = cases.front().hosts;
  run_device_ranks(static_cast<int>(hosts.size()), {}, [&](DeviceRank& here) {
    make_levels(*here.communicator, hosts);
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    std::vector<std::unique_ptr<Tensor>> send, receive;
    for (const Case& c : cases) {
      send.push_back(std::make_unique<Tensor>(4 * c.block * c.ranks()));
      receive.push_back(std::make_unique<Tensor>(4 * c.block));
    }
    for (std::size_t call = 0; call < kCalls; ++call) {
      std::vector<Request> requests;
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const Case& c = cases[i];
        send[i]->write(c.input_of(rank, call), here.nccl.stream);
        EXPECT_CUDA(cudaStreamSynchronize(here.nccl.stream));
        void* const to =
            c.in_place ? static_cast<std::byte*>(send[i]->data()) + 4 * c.block * rank : receive[i]->data();
        requests.push_back({here.communicator.get(), send[i]->data(), to, Shape(c.block, true),
                            DataType::kFloat32, c.op, c.tag, here.nccl.stream, false});
      }
      ASSERT_EQ(run(requests), kSuccess);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const Case& c = cases[i];
        ASSERT_TRUE(requests[i].compressed);
        Bytes found = c.in_place ? send[i]->read(here.nccl.stream) : receive[i]->read(here.nccl.stream);
        if (c.in_place) {
          const auto begin = found.begin() + static_cast<std::ptrdiff_t>(4 * c.block * rank);
          found = Bytes(begin, begin + static_cast<std::ptrdiff_t>(4 * c.block));
        }
        ASSERT_EQ(found, expected[i][call][rank]) << "tensor " << i << " call " << call;
      }
    }
  });
}

TEST(NcclLevelScatter, GivesWhatItsDefinitionSaysForEveryBlockAndPlaceOfRanks) {
  for (const Hosts& hosts : {Hosts{1, 1, 2, 2}, Hosts{1, 2, 1, 2}, Hosts{3, 1, 1, 3, 2, 2}}) {
    for (const std::size_t block : {std::size_t{1}, std::size_t{17}, std::size_t{4099}}) {
      expect_defined({{.hosts = hosts, .block = block, .in_place = block % 2 == 0}});
      expect_defined({{.hosts = hosts, .block = block + 1, .in_place = true}});
    }
  }
  expect_defined({{.hosts = {1, 1, 1, 2, 2, 2}, .block = 5000, .op = ReduceOp::kAvg}});
}

TEST(NcclLevelScatter, SeveralOfAGroupRunTogetherAndAreToldApartByTheirSendBuffers) {
  expect_defined({{.hosts = {1, 1, 2, 2}, .block = 1001, .tag = ""},
                  {.hosts = {1, 1, 2, 2}, .block = 1001, .tag = ""},
                  {.hosts = {1, 1, 2, 2}, .block = 77, .tag = ""}});
}

TEST(NcclLevelScatter, WhereARankLacksMemoryForSumsAllRanksGoTheExactWay) {
  CommunicatorOptions options;
  options.codec.memory.allocator.allocate = [](std::size_t bytes, cudaStream_t stream, void*) -> void* {
    int device = -1;
    cudaGetDevice(&device);
    if (device == 2 && bytes >= 8000) return nullptr;
    return Allocator().allocate(bytes, stream, nullptr);
  };
  run_device_ranks(4, options, [&](DeviceRank& here) {
    make_levels(*here.communicator, {1, 1, 2, 2});
    const Tensor send(4 * 4000), receive(4 * 1000);
    Request request{here.communicator.get(), send.data(), receive.data(),   {1000, true}, DataType::kFloat32,
                    ReduceOp::kSum,          "t",         here.nccl.stream, false};
    for (int call = 0; call < 2; ++call) {
      request.compressed = true;
      ASSERT_EQ(run({&request, 1}), kSuccess);
      EXPECT_FALSE(request.compressed);
    }
  });
}

TEST(NcclLevelScatter, AfterAFailureInsideNodesTheSumsStayUntilTheStreamIsDoneWithThem) {
  static thread_local int calls;
  Functions nccl = linked_nccl();
  nccl.reduce_scatter = [](const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,
                           cudaStream_t stream) {
    return ++calls == 2 ? kInternalError
                        : linked_nccl().reduce_scatter(send, receive, count, type, op, comm, stream);
  };
  run_device_ranks(4, {}, nccl, [](DeviceRank& here) {
    calls = 0;
    make_levels(*here.communicator, {1, 1, 2, 2});
    const Tensor send(4 * 4000), receive(4 * 1000);
    const cuda_cpu::StreamGate gate;
    gate.stop(here.nccl.stream);
    Request request{here.communicator.get(), send.data(), receive.data(),   {1000, true}, DataType::kFloat32,
                    ReduceOp::kSum,          "t",         here.nccl.stream, false};
    EXPECT_EQ(run({&request, 1}), kInternalError);
    const cudaStream_t of_sums = here.communicator->levels()->compressed().own_stream();
    EXPECT_EQ(cudaStreamQuery(of_sums), cudaErrorNotReady)
        << "memory would be freed under the first node's sum";
    gate.open();
    EXPECT_CUDA(cudaStreamSynchronize(of_sums));
  });
}

}  // namespace
}  // namespace onebit::nccl
