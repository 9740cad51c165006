// Calls that end together are a batch: one launch a step and one message to each rank, whatever their number;
// with the results of calls one after the other.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "device_ranks.h"
#include "support/simulation.h"

namespace {

std::atomic<int> g_launches = 0;

}  // namespace

/// In the place of the stand-in's: counts, and calls that one.
extern "C" cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared_bytes, cudaStream_t stream) {
  using Launch = cudaError_t (*)(const void*, dim3, dim3, void**, std::size_t, cudaStream_t);
  static const auto real = reinterpret_cast<Launch>(dlsym(RTLD_NEXT, "cudaLaunchKernel"));
  ++g_launches;
  return real(kernel, grid, block, arguments, shared_bytes, stream);
}

namespace onebit::nccl {
namespace {

using testing::input;
using testing::Simulation;

std::atomic<int> g_sends = 0;
std::atomic<int> g_gathers = 0;

Functions counting_nccl() {
  Functions functions = linked_nccl();
  functions.send = [](const void* buffer, std::size_t count, Type type, int peer, Comm comm,
                      cudaStream_t stream) {
    ++g_sends;
    return linked_nccl().send(buffer, count, type, peer, comm, stream);
  };
  functions.all_gather = [](const void* send, void* receive, std::size_t count, Type type, Comm comm,
                            cudaStream_t stream) {
    ++g_gathers;
    return linked_nccl().all_gather(send, receive, count, type, comm, stream);
  };
  return functions;
}

struct Counts {
  int launches, sends, gathers;
  friend bool operator==(const Counts&, const Counts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Counts& c) {
    return out << c.launches << " launches, " << c.sends << " sends, " << c.gathers << " allgathers";
  }
};

/// A step of a job: `counts` tensors reduced together by each of `ranks` ranks, three times; what the last
/// takes of each rank.
Counts expect_batch(int ranks, const std::vector<std::size_t>& counts, std::size_t chunk = 0,
                    bool own_streams = false, bool same_tensor = false) {
  const auto all = static_cast<std::size_t>(ranks);
  std::vector<Simulation> simulations;
  for (const std::size_t count : counts)
    simulations.emplace_back(all, count, DataType::kFloat32, ReduceOp::kAvg, codec::Parameters());
  constexpr std::size_t kSteps = 3;
  const auto of = [&](std::size_t rank, std::size_t step, std::size_t i) {
    return input(DataType::kFloat32, counts[i], 10000 * rank + 100 * step + i);
  };
  std::vector<std::vector<std::vector<std::byte>>> expected(kSteps);
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::vector<std::vector<std::byte>> inputs;
      for (std::size_t rank = 0; rank < all; ++rank) inputs.push_back(of(rank, step, i));
      expected[step].push_back(simulations[same_tensor ? 0 : i].call(inputs));
    }
  }
  CommunicatorOptions options;
  options.chunk = chunk;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t arrived = 0;
  Counts last{};
  run_device_ranks(ranks, options, counting_nccl(), [&](DeviceRank& here) {
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<std::unique_ptr<cuda_cpu::TestStream>> streams;
    std::vector<std::string> tags;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tensors.push_back(std::make_unique<Tensor>(4 * counts[i]));
      streams.push_back(std::make_unique<cuda_cpu::TestStream>());
      tags.push_back(formatted("t{}", same_tensor ? 0 : i));
    }
    for (std::size_t step = 0; step < kSteps; ++step) {
      {
        // Counts are of whole steps.
        std::unique_lock lock(mutex);
        if (++arrived % all == 0) {
          g_launches = g_sends = g_gathers = 0;
          changed.notify_all();
        } else {
          const std::size_t round = (arrived + all - 1) / all * all;
          changed.wait(lock, [&] { return arrived >= round; });
        }
      }
      std::vector<Request> requests;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const cudaStream_t stream = own_streams ? static_cast<cudaStream_t>(*streams[i]) : here.nccl.stream;
        tensors[i]->write(of(rank, step, i), stream);
        requests.push_back({here.communicator.get(), tensors[i]->data(), tensors[i]->data(), counts[i],
                            DataType::kFloat32, ReduceOp::kAvg, tags[i].c_str(), stream, false});
      }
      ASSERT_EQ(run(requests), kSuccess);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        ASSERT_EQ(tensors[i]->read(requests[i].stream), expected[step][i])
            << "tensor " << i << " step " << step;
      }
      std::unique_lock lock(mutex);
      if (++arrived % all == 0) {
        last = {g_launches / ranks, g_sends / ranks, g_gathers / ranks};
        changed.notify_all();
      } else {
        const std::size_t round = (arrived + all - 1) / all * all;
        changed.wait(lock, [&] { return arrived >= round; });
      }
    }
  });
  return last;
}

TEST(NcclBatches, SmallTensorsOfAGroupTakeOneLaunchAStepAndOneMessageToEachRank) {
  EXPECT_EQ(expect_batch(3, {9001, 40, 5000, 2048, 1, 333}), (Counts{3, 2, 1}));
  EXPECT_EQ(expect_batch(2, std::vector<std::size_t>(20, 777)), (Counts{3, 1, 1}));
}

TEST(NcclBatches, ATensorOfSeveralChunksRunsAloneAndTheOthersTogether) {
  // 9000 elements a partition in chunks of 2048 are five.
  EXPECT_EQ(expect_batch(2, {100, 200, 18000, 300, 400}, 2048), (Counts{3 * 7, 7, 7}));
}

TEST(NcclBatches, MorePiecesThanALaunchHoldsTakeSeveral) {
  // 30 tensors of two partitions are 60 pieces to encode and to decode, 30 to average.
  EXPECT_EQ(expect_batch(2, std::vector<std::size_t>(30, 500)), (Counts{5, 1, 1}));
}

TEST(NcclBatches, CallsOfABatchMayComeOnStreamsOfTheirOwn) {
  EXPECT_EQ(expect_batch(2, {5000, 6000, 7000}, 0, true), (Counts{3, 1, 1}));
}

TEST(NcclBatches, TheSameTensorTwiceInABatchIsReducedOneCallAfterTheOther) {
  EXPECT_EQ(expect_batch(2, {4000, 4000}, 0, false, true), (Counts{5, 1, 1}));
}

}  // namespace
}  // namespace onebit::nccl
