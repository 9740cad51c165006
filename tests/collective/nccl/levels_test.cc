// Allreduces in two levels against their definition: sums of nodes in full precision, each partition of which
// is what a simulation of as many ranks as there are nodes makes of it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "device_levels.h"
#include "support/simulation.h"

namespace onebit::nccl {
namespace {

using testing::input;
using testing::Simulation;

TEST(LevelPlace, IsThereWhereSeveralNodesHaveSeveralRanksEach) {
  const Hosts hosts = {7, 5, 7, 5, 9, 9};
  const auto place = place_of(hosts, 3);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->nodes, 3u);
  EXPECT_EQ(place->node, 1u);
  EXPECT_EQ(place->size, 2u);
  EXPECT_EQ(place->place, 1u);
  for (const Hosts& none : {Hosts{1}, Hosts{1, 1, 1}, Hosts{1, 2, 3}, Hosts{1, 1, 2}, Hosts{1, 1, 1, 2}}) {
    EXPECT_FALSE(place_of(none, 0));
  }
}

struct Case {
  Hosts hosts;
  std::size_t count;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = true;
  codec::Parameters parameters = {};
};

std::vector<std::byte> input_of(std::size_t rank, std::size_t call, std::size_t count) {
  return input(DataType::kFloat32, count, 1000 * rank + call);
}

/// What all ranks get from `calls` calls.
std::vector<std::vector<std::byte>> defined(const Case& c, std::size_t calls) {
  std::vector<LevelPlace> places;
  for (unsigned rank = 0; rank < c.hosts.size(); ++rank) places.push_back(*place_of(c.hosts, rank));
  const unsigned nodes = places.front().nodes;
  const unsigned size = places.front().size;
  const collective::PartitionPlan plan(c.count, size, c.count + 8);
  std::vector<Simulation> simulations;
  for (unsigned p = 0; p < size; ++p)
    simulations.emplace_back(nodes, plan.partition(p).length, DataType::kFloat32, c.op, c.parameters);
  std::vector<std::vector<std::byte>> results;
  for (std::size_t call = 0; call < calls; ++call) {
    std::vector<std::vector<float>> sums(nodes, std::vector<float>(c.count));
    for (std::size_t rank = 0; rank < c.hosts.size(); ++rank) {
      const auto bytes = input_of(rank, call, c.count);
      for (std::size_t i = 0; i < c.count; ++i) {
        float x;
        std::memcpy(&x, bytes.data() + 4 * i, 4);
        const float factor = c.op == ReduceOp::kAvg ? 1.0F / static_cast<float>(size) : 1.0F;
        sums[places[rank].node][i] += x * factor;
      }
    }
    std::vector<std::byte>& result = results.emplace_back(4 * c.count);
    for (unsigned p = 0; p < size; ++p) {
      const collective::Range range = plan.partition(p);
      if (range.length == 0) continue;
      std::vector<std::vector<std::byte>> slices;
      for (const std::vector<float>& sum : sums) {
        std::memcpy(slices.emplace_back(4 * range.length).data(), sum.data() + range.begin, 4 * range.length);
      }
      const auto y = simulations[p].call(slices);
      std::memcpy(result.data() + 4 * range.begin, y.data(), y.size());
    }
  }
  return results;
}

void expect_defined(const Case& c) {
  SCOPED_TRACE(fmt::format("{} ranks, {} x {}", c.hosts.size(), c.count, name_of(c.op)));
  constexpr std::size_t kCalls = 3;
  const auto expected = defined(c, kCalls);
  CommunicatorOptions options;
  options.codec.parameters = c.parameters;
  run_device_ranks(static_cast<int>(c.hosts.size()), options, [&](DeviceRank& here) {
    make_levels(*here.communicator, c.hosts);
    const Tensor send(4 * c.count), receive(4 * c.count);
    const Tensor& result = c.in_place ? send : receive;
    for (std::size_t call = 0; call < kCalls; ++call) {
      const auto own = input_of(static_cast<std::size_t>(here.nccl.rank), call, c.count);
      send.write(own, here.nccl.stream);
      Request request{
          here.communicator.get(), send.data(), result.data(), c.count, DataType::kFloat32, c.op, "t",
          here.nccl.stream,        false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      ASSERT_TRUE(request.compressed);
      ASSERT_EQ(result.read(here.nccl.stream), expected[call]) << "call " << call;
      if (!c.in_place) {
        ASSERT_EQ(send.read(here.nccl.stream), own) << "the send buffer stays";
      }
    }
  });
}

TEST(NcclLevels, GiveWhatTheirDefinitionSaysForEveryCountAndPlaceOfRanks) {
  for (const Hosts& hosts : {Hosts{1, 1, 2, 2}, Hosts{1, 2, 1, 2}, Hosts{3, 3, 1, 1, 2, 2}}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{17}, std::size_t{9973}, std::size_t{16000}}) {
      expect_defined({.hosts = hosts, .count = count, .in_place = count % 2 == 0});
    }
  }
  expect_defined({.hosts = {1, 1, 1, 2, 2, 2}, .count = 24000});
}

TEST(NcclLevels, GiveAveragesAndWholeModeToo) {
  expect_defined({.hosts = {1, 1, 2, 2}, .count = 9001, .op = ReduceOp::kAvg, .in_place = false});
  expect_defined({.hosts = {1, 1, 2, 2}, .count = 16000, .parameters = {codec::kWhole, codec::Scale::kRms}});
}

TEST(NcclLevels, SeveralTensorsRunTogetherAlsoReduceScatters) {
  const Case large = {.hosts = {1, 1, 2, 2}, .count = 9001};
  const Case small = {.hosts = {1, 1, 2, 2}, .count = 320};
  const auto expected_large = defined(large, 1);
  const auto expected_small = defined(small, 1);
  run_device_ranks(4, {}, [&](DeviceRank& here) {
    make_levels(*here.communicator, large.hosts);
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    const Tensor first(4 * large.count), second(4 * small.count), send(4 * 400), block(4 * 100);
    first.write(input_of(rank, 0, large.count), here.nccl.stream);
    second.write(input_of(rank, 0, small.count), here.nccl.stream);
    const std::vector<float> ones(400, 1.0F);
    EXPECT_CUDA(cudaMemcpyAsync(send.data(), ones.data(), 1600, cudaMemcpyHostToDevice, here.nccl.stream));
    const auto request = [&](const Tensor& from, const Tensor& to, Shape shape) {
      return Request{here.communicator.get(), from.data(), to.data(),        shape, DataType::kFloat32,
                     ReduceOp::kSum,          "",          here.nccl.stream, false};
    };
    Request requests[] = {request(first, first, large.count), request(send, block, {100, true}),
                          request(second, second, small.count)};
    ASSERT_EQ(run(requests), kSuccess);
    for (const Request& one : requests) EXPECT_TRUE(one.compressed);
    EXPECT_EQ(first.read(here.nccl.stream), expected_large[0]);
    EXPECT_EQ(second.read(here.nccl.stream), expected_small[0]);
    const std::vector<float> fours(100, 4.0F);
    const auto* const bytes = reinterpret_cast<const std::byte*>(fours.data());
    EXPECT_EQ(block.read(here.nccl.stream), std::vector<std::byte>(bytes, bytes + 400));
    EXPECT_EQ(here.communicator->statistics().calls, 3u);
  });
}

TEST(NcclLevels, AnAbortEndsCallsWhosePeerDoesNotCome) {
  constexpr std::size_t kCount = 9001;
  run_device_ranks(4, {}, [](DeviceRank& here) {
    make_levels(*here.communicator, {1, 1, 2, 2});
    const Tensor tensor(4 * kCount);
    std::thread aborter([&] {
      EXPECT_CUDA(cudaSetDevice(here.nccl.rank));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      here.communicator->abort();
    });
    if (here.nccl.rank != 3) {
      Request request{here.communicator.get(), tensor.data(), tensor.data(),    kCount, DataType::kFloat32,
                      ReduceOp::kSum,          "t",           here.nccl.stream, false};
      const Result result = run({&request, 1});
      if (here.nccl.rank == 1) {
        EXPECT_NE(result, kSuccess) << "it waits for what rank 3 says of its memory";
      }
    }
    aborter.join();
    EXPECT_CUDA(cudaStreamSynchronize(here.nccl.stream));
  });
}

TEST(NcclLevels, WhereARankLacksMemoryItsPartitionIsExact) {
  std::atomic<bool> lacks = false;
  CommunicatorOptions options;
  options.codec.memory.allocator.context = &lacks;
  options.codec.memory.allocator.allocate = [](std::size_t bytes, cudaStream_t stream,
                                               void* context) -> void* {
    int device = -1;
    cudaGetDevice(&device);
    if (static_cast<std::atomic<bool>*>(context)->load() && device == 3 && bytes > 10000) return nullptr;
    return Allocator().allocate(bytes, stream, nullptr);
  };
  lacks = true;
  constexpr std::size_t kCount = 16000;
  const Case c = {.hosts = {1, 1, 2, 2}, .count = kCount};
  const auto expected = defined(c, 1)[0];
  run_device_ranks(4, options, [&](DeviceRank& here) {
    make_levels(*here.communicator, c.hosts);
    const Tensor tensor(4 * kCount);
    tensor.write(input_of(static_cast<std::size_t>(here.nccl.rank), 0, kCount), here.nccl.stream);
    Request request{here.communicator.get(), tensor.data(), tensor.data(),    kCount, DataType::kFloat32,
                    ReduceOp::kSum,          "t",           here.nccl.stream, false};
    ASSERT_EQ(run({&request, 1}), kSuccess);
    const auto found = tensor.read(here.nccl.stream);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), 2 * kCount), 0) << "the first half is compressed";
    for (std::size_t i = kCount / 2; i < kCount; ++i) {
      float sums[2] = {};
      for (std::size_t rank = 0; rank < 4; ++rank) {
        static const std::vector<std::byte> inputs[4] = {input_of(0, 0, kCount), input_of(1, 0, kCount),
                                                         input_of(2, 0, kCount), input_of(3, 0, kCount)};
        float x;
        std::memcpy(&x, inputs[rank].data() + 4 * i, 4);
        sums[rank / 2] += x;
      }
      float y;
      std::memcpy(&y, found.data() + 4 * i, 4);
      ASSERT_EQ(y, sums[0] + sums[1]) << i;
    }
  });
}

}  // namespace
}  // namespace onebit::nccl
