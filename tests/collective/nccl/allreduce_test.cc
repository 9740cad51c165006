// Allreduces in 1 bit over NCCL against a simulation of all ranks by the scalar reference: the same bytes,
// call after call.
#include <gtest/gtest.h>

#include "device_ranks.h"
#include "support/simulation.h"

namespace onebit::nccl {
namespace {

using testing::input;
using testing::Simulation;

struct Case {
  int ranks;
  std::size_t count;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kAvg;
  codec::Parameters parameters = {};
  std::size_t chunk = 0;
  bool in_place = true;
};

void expect_simulated(const Case& c) {
  SCOPED_TRACE(formatted("{} ranks, {} x {} {}, block {}, chunk {}", c.ranks, c.count, name_of(c.type),
                         name_of(c.op), c.parameters.block, c.chunk));
  constexpr std::size_t kCalls = 3;
  const auto ranks = static_cast<std::size_t>(c.ranks);
  std::vector<std::vector<std::vector<std::byte>>> inputs(kCalls);
  std::vector<std::vector<std::byte>> expected;
  Simulation simulation(ranks, c.count, c.type, c.op, c.parameters);
  for (std::size_t call = 0; call < kCalls; ++call) {
    for (std::size_t r = 0; r < ranks; ++r) inputs[call].push_back(input(c.type, c.count, 1000 * r + call));
    expected.push_back(simulation.call(inputs[call]));
  }
  CommunicatorOptions options;
  options.chunk = c.chunk;
  options.codec.parameters = c.parameters;
  run_device_ranks(c.ranks, options, [&](DeviceRank& here) {
    const std::size_t bytes = c.count * size_of(c.type);
    const Tensor send(bytes), receive(bytes);
    const Tensor& result = c.in_place ? send : receive;
    for (std::size_t call = 0; call < kCalls; ++call) {
      send.write(inputs[call][static_cast<std::size_t>(here.nccl.rank)], here.nccl.stream);
      Request request{here.communicator.get(), send.data(), result.data(), c.count, c.type, c.op, "t",
                      here.nccl.stream,        false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      ASSERT_TRUE(request.compressed);
      ASSERT_EQ(result.read(here.nccl.stream), expected[call]) << "call " << call;
    }
  });
}

TEST(NcclAllReduce, GivesTheBytesOfTheSimulationForEveryNumberOfRanks) {
  for (const int ranks : {2, 3, 7, 8}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{9973}, std::size_t{40000}}) {
      expect_simulated({.ranks = ranks, .count = count, .in_place = ranks % 2 == 0});
    }
  }
}

TEST(NcclAllReduce, GivesTheBytesOfTheSimulationForEveryTypeAndOp) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      expect_simulated(
          {.ranks = 3, .count = 12345, .type = type, .op = op, .in_place = op == ReduceOp::kSum});
    }
  }
}

TEST(NcclAllReduce, GivesTheBytesOfTheSimulationForEveryBlockAndScale) {
  for (const std::uint32_t block : {256u, 512u, 1024u, 4096u, 8192u, 16384u, 65536u, codec::kWhole}) {
    for (const codec::Scale scale : {codec::Scale::kRms, codec::Scale::kMean}) {
      expect_simulated({.ranks = 2, .count = 150001, .parameters = {block, scale}});
    }
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{2049}, std::size_t{30000}}) {
    expect_simulated({.ranks = 3, .count = count, .parameters = {codec::kWhole, codec::Scale::kRms}});
  }
}

TEST(NcclAllReduce, GivesTheBytesOfTheSimulationInChunks) {
  for (const std::size_t chunk :
       {std::size_t{1}, std::size_t{2048}, std::size_t{5000}, std::size_t{1} << 20}) {
    expect_simulated({.ranks = 3, .count = 50001, .chunk = chunk});
    expect_simulated({.ranks = 2, .count = 50001, .parameters = {512, codec::Scale::kMean}, .chunk = chunk});
  }
}

TEST(NcclAllReduce, WithErrorsInBf16GivesEqualBytesOnAllRanksAndWhatIsOwedInTheEnd) {
  constexpr std::size_t kCount = 20000;
  constexpr std::size_t kCalls = 60;
  CommunicatorOptions options;
  options.codec.error = codec::cuda::ErrorType::kBFloat16;
  options.codec.parameters.scale = codec::Scale::kMean;
  std::vector<std::vector<std::vector<std::byte>>> results(2);
  run_device_ranks(2, options, [&](DeviceRank& here) {
    const Tensor send(4 * kCount), receive(4 * kCount);
    std::vector<float> x(kCount, 0.25f);
    for (std::size_t i = 0; i < kCount; i += 3) x[i] = here.nccl.rank == 0 ? -1.0f : 0.5f;
    send.write(
        {reinterpret_cast<const std::byte*>(x.data()), reinterpret_cast<const std::byte*>(x.data() + kCount)},
        here.nccl.stream);
    for (std::size_t call = 0; call < kCalls; ++call) {
      Request request{here.communicator.get(), send.data(), receive.data(),   kCount, DataType::kFloat32,
                      ReduceOp::kAvg,          "t",         here.nccl.stream, false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      results[static_cast<std::size_t>(here.nccl.rank)].push_back(receive.read(here.nccl.stream));
    }
  });
  EXPECT_EQ(results[0], results[1]);
  for (std::size_t i = 0; i < kCount; ++i) {
    float sum = 0;
    for (const auto& y : results[0]) sum += reinterpret_cast<const float*>(y.data())[i];
    ASSERT_NEAR(sum / kCalls, i % 3 == 0 ? -0.25f : 0.25f, 0.1f) << i;
  }
}

/// `calls` requests of each of `ranks` communicators, all driven by one thread.
void expect_group_of_all_ranks(int ranks, std::size_t calls) {
  constexpr std::size_t kCount = 6000;
  std::vector<int> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(r);
  std::vector<ncclComm_t> comms(devices.size());
  EXPECT_NCCL(ncclCommInitAll(comms.data(), ranks, devices.data()));
  std::vector<std::unique_ptr<NcclCommunicator>> communicators;
  std::vector<cudaStream_t> streams(devices.size());
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<Request> requests;
  std::vector<std::vector<std::vector<std::byte>>> inputs(calls);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    ASSERT_EQ(cudaSetDevice(devices[r]), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking), cudaSuccess);
    CommunicatorOptions options;
    options.comm = reinterpret_cast<Comm>(comms[r]);
    options.nccl = linked_nccl();
    options.device = devices[r];
    options.codec.rank = static_cast<unsigned>(r);
    options.codec.ranks = static_cast<unsigned>(ranks);
    auto made = NcclCommunicator::create(options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    communicators.push_back(std::move(*made));
    for (std::size_t call = 0; call < calls; ++call) {
      inputs[call].push_back(input(DataType::kFloat32, kCount + call % 2, 100 * r + call));
      const Tensor& tensor = *tensors.emplace_back(std::make_unique<Tensor>(inputs[call].back().size()));
      tensor.write(inputs[call].back(), streams[r]);
      requests.push_back({communicators[r].get(), tensor.data(), tensor.data(), kCount + call % 2,
                          DataType::kFloat32, ReduceOp::kSum, "", streams[r], false});
    }
  }
  std::vector<NcclCommunicator*> all;
  for (const auto& communicator : communicators) all.push_back(communicator.get());
  carry_by_test_transport(all);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(run(requests), kSuccess);
  int device = -1;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0) << "the caller's device stays current";
  for (std::size_t call = 0; call < calls; ++call) {
    Simulation simulation(devices.size(), kCount + call % 2, DataType::kFloat32, ReduceOp::kSum, {});
    const auto expected = simulation.call(inputs[call]);
    for (std::size_t r = 0; r < devices.size(); ++r) {
      EXPECT_EQ(tensors[r * calls + call]->read(streams[r]), expected) << "rank " << r << " call " << call;
    }
  }
  tensors.clear();
  communicators.clear();
  for (std::size_t r = 0; r < devices.size(); ++r) {
    EXPECT_EQ(cudaStreamDestroy(streams[r]), cudaSuccess);
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
  }
}

TEST(NcclAllReduce, RunsCallsOfSeveralCommunicatorsOfOneThreadPhaseByPhase) {
  expect_group_of_all_ranks(3, 1);
  expect_group_of_all_ranks(2, 4);
}

TEST(NcclAllReduce, MakesNoMemoryAfterTheFirstCallOfATensor) {
  CommunicatorOptions options;
  struct Count {
    std::atomic<int> allocations = 0;
  } count;
  options.codec.memory.allocator.context = &count;
  options.codec.memory.allocator.allocate = [](std::size_t bytes, cudaStream_t stream,
                                               void* context) -> void* {
    ++static_cast<Count*>(context)->allocations;
    return Allocator().allocate(bytes, stream, nullptr);
  };
  std::atomic<int> after_first = 0;
  run_device_ranks(2, options, [&](DeviceRank& here) {
    const Tensor tensor(40000);
    for (int call = 0; call < 5; ++call) {
      tensor.write(input(DataType::kFloat32, 10000, 1), here.nccl.stream);
      Request request{here.communicator.get(), tensor.data(), tensor.data(),    10000, DataType::kFloat32,
                      ReduceOp::kAvg,          "t",           here.nccl.stream, false};
      const int before = count.allocations;
      ASSERT_EQ(run({&request, 1}), kSuccess);
      tensor.read(here.nccl.stream);  // both ranks are through the call
      if (call > 1) after_first += count.allocations - before;
    }
  });
  EXPECT_GT(count.allocations, 0);
  EXPECT_EQ(after_first, 0);
}

TEST(NcclAllReduce, FollowsItsLastCallWhenTheStreamChanges) {
  run_device_ranks(2, {}, [](DeviceRank& here) {
    constexpr std::size_t kCount = 30000;
    Simulation simulation(2, kCount, DataType::kFloat32, ReduceOp::kSum, {});
    const cuda_cpu::TestStream other;
    const Tensor tensors[2] = {Tensor(4 * kCount), Tensor(4 * kCount)};
    const cudaStream_t streams[2] = {here.nccl.stream, other};
    std::vector<std::vector<std::byte>> expected;
    for (std::size_t call = 0; call < 2; ++call) {
      const auto of_rank = [&](std::size_t r) { return input(DataType::kFloat32, kCount, 50 * r + call); };
      tensors[call].write(of_rank(static_cast<std::size_t>(here.nccl.rank)), streams[call]);
      expected.push_back(simulation.call({of_rank(0), of_rank(1)}));
    }
    for (std::size_t call = 0; call < 2; ++call) {
      Request request{here.communicator.get(),
                      tensors[call].data(),
                      tensors[call].data(),
                      kCount,
                      DataType::kFloat32,
                      ReduceOp::kSum,
                      "t",
                      streams[call],
                      false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
    }
    for (std::size_t call = 0; call < 2; ++call) EXPECT_EQ(tensors[call].read(streams[call]), expected[call]);
  });
}

TEST(NcclAllReduce, GoesTheExactWayOnAllRanksWhenOneLacksMemory) {
  CommunicatorOptions options;
  std::atomic<bool> lacks = false;
  options.codec.memory.allocator.context = &lacks;
  options.codec.memory.allocator.allocate = [](std::size_t bytes, cudaStream_t stream,
                                               void* context) -> void* {
    int device = -1;
    cudaGetDevice(&device);
    if (static_cast<std::atomic<bool>*>(context)->load() && device == 1 && bytes > 50000) return nullptr;
    return Allocator().allocate(bytes, stream, nullptr);
  };
  lacks = true;
  run_device_ranks(3, options, [](DeviceRank& here) {
    const Tensor tensor(400000);
    for (const auto& [count, fits] :
         {std::pair{100000, false}, std::pair{1000, true}, std::pair{100000, false}}) {
      tensor.write(input(DataType::kFloat32, 100000, 1), here.nccl.stream);
      Request request{here.communicator.get(),
                      tensor.data(),
                      tensor.data(),
                      static_cast<std::size_t>(count),
                      DataType::kFloat32,
                      ReduceOp::kAvg,
                      "t",
                      here.nccl.stream,
                      false};
      ASSERT_EQ(run({&request, 1}), kSuccess);
      EXPECT_EQ(request.compressed, fits) << count;
    }
  });
}

}  // namespace
}  // namespace onebit::nccl
