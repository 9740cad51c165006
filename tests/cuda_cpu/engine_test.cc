// The emulated device: indices, barriers, warp operations and shared memory do what CUDA says, in every order
// of the threads, and what CUDA leaves undefined is seen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda_cpu/engine_launch.h"

namespace onebit::cuda_cpu {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFU;

__global__ void write_indices(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 10000 + thread + 1;
}

template <int kCount>
__global__ void reverse(int* data) {
  __shared__ int shared[kCount];
  int* const mine = data + blockIdx.x * kCount;
  for (int round = 0; round < 3; ++round) {
    shared[threadIdx.x] = mine[threadIdx.x];
    __syncthreads();
    mine[threadIdx.x] = shared[kCount - 1 - threadIdx.x];
    __syncthreads();
  }
}

__global__ void reverse_dynamic(int* data) {
  ONEBIT_DYNAMIC_SHARED(int, shared);
  shared[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void read_fresh_shared(float* out) {
  ONEBIT_DYNAMIC_SHARED(float, shared);
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
}

__global__ void vote(unsigned* out) {
  const unsigned odd = __ballot_sync(kAll, threadIdx.x & 1);
  const bool same = __all_sync(kAll, threadIdx.x < 1000) && __any_sync(kAll, threadIdx.x % 32 == 7) &&
                    !__all_sync(kAll, threadIdx.x % 32 != 3) && !__any_sync(kAll, threadIdx.x > 1000);
  out[threadIdx.x] = same ? odd : 0;
}

struct Shuffles {
  double from_five;
  int up, down, mirrored, in_eights;
};
__global__ void shuffle_all_ways(Shuffles* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = {__shfl_sync(kAll, lane + 0.5, 5), __shfl_up_sync(kAll, lane, 3),
               __shfl_down_sync(kAll, lane, 3), __shfl_xor_sync(kAll, lane, 31),
               __shfl_sync(kAll, lane, 2, 8)};
}

__global__ void reduce_and_match(unsigned* out) {
  const unsigned lane = threadIdx.x;
  const bool right = __reduce_add_sync(kAll, lane) == 496 && __reduce_min_sync(kAll, lane + 2) == 2 &&
                     __reduce_max_sync(kAll, lane) == 31 && __reduce_and_sync(kAll, lane | 64) == 64 &&
                     __reduce_or_sync(kAll, lane) == 31 && __reduce_xor_sync(kAll, lane == 9 ? 6 : 0) == 6 &&
                     __match_any_sync(kAll, lane / 16) == (lane < 16 ? 0xFFFFU : 0xFFFF0000U);
  out[lane] = right ? 1 : 0;
}

/// Even and odd lanes go separate ways, each half with a mask of its own.
__global__ void sum_of_halves(int* out) {
  int sum = static_cast<int>(threadIdx.x);
  if ((threadIdx.x & 1) != 0) {
    for (int distance = 16; distance > 1; distance /= 2) sum += __shfl_xor_sync(0xAAAAAAAAU, sum, distance);
  } else {
    for (int distance = 16; distance > 1; distance /= 2) sum += __shfl_xor_sync(0x55555555U, sum, distance);
  }
  out[threadIdx.x] = sum;
}

__global__ void some_threads_leave(unsigned* out, unsigned staying) {
  if (threadIdx.x >= staying) return;
  const unsigned lanes = static_cast<unsigned>(__popc(__ballot_sync(kAll, 1)));
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = lanes;
}

__global__ void count_in_barrier(int* out) {
  const int count = __syncthreads_count(threadIdx.x % 3 == 0);
  const int all = __syncthreads_and(threadIdx.x < 96);
  const int any = __syncthreads_or(threadIdx.x == 95);
  const int none = __syncthreads_or(threadIdx.x == 96);
  out[threadIdx.x] = count * 1000 + all * 100 + any * 10 + none;
}

__global__ void exchange_by_syncwarp(int* data) {
  __shared__ int shared[64];
  const unsigned first = threadIdx.x & ~31U;
  shared[threadIdx.x] = data[threadIdx.x];
  __syncwarp();
  const int other = shared[first + 31 - threadIdx.x % 32];
  __syncwarp();
  data[threadIdx.x] = other;
}

__global__ void add_all(unsigned* counter, float* sum, unsigned* most) {
  atomicAdd(counter, 1);
  atomicAdd(sum, 0.5F);
  atomicMax(most, threadIdx.x + blockIdx.x);
}

class EngineInOrder : public ::testing::TestWithParam<EngineOptions> {
 protected:
  template <typename Kernel, typename... Arguments>
  void run(Kernel kernel, const Shape& shape, Arguments... arguments) {
    run_on_engine(GetParam(), kernel, shape, arguments...);
  }
};
std::string order_name(const ::testing::TestParamInfo<EngineOptions>& parameter) {
  const EngineOptions& options = parameter.param;
  const std::string workers = options.workers > 1 ? "OnTwoThreads" : "";
  if (options.order == Order::kForward) return "Forward" + workers;
  if (options.order == Order::kReverse) return "Reverse" + workers;
  return "Random" + std::to_string(options.seed) + workers;
}
INSTANTIATE_TEST_SUITE_P(Orders, EngineInOrder,
                         ::testing::Values(EngineOptions{}, EngineOptions{Order::kReverse},
                                           EngineOptions{Order::kRandom, 1}, EngineOptions{Order::kRandom, 2},
                                           EngineOptions{Order::kRandom, 3, 2}),
                         order_name);

TEST_P(EngineInOrder, EveryThreadOfEveryBlockRunsOnceWithItsIndices) {
  const Shape shape{dim3(3, 2, 2), dim3(5, 3, 2)};
  std::vector<unsigned> out(12 * 30);
  run(write_indices, shape, out.data());
  for (unsigned i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i / 30 * 10000 + i % 30 + 1);
}

TEST_P(EngineInOrder, SharedMemoryPassesDataOverABarrier) {
  std::vector<int> data(4 * 256);
  std::iota(data.begin(), data.end(), 0);
  run(reverse<256>, Shape{dim3(4), dim3(256)}, data.data());
  for (int i = 0; i < 4 * 256; ++i)
    ASSERT_EQ(data[static_cast<std::size_t>(i)], i / 256 * 256 + 255 - i % 256);
}

TEST_P(EngineInOrder, DynamicSharedMemoryPassesDataOverABarrierInTheLargestBlock) {
  std::vector<int> data(kMaxThreads);
  std::iota(data.begin(), data.end(), 0);
  EngineOptions options = GetParam();
  options.tsan_fiber_per_warp = true;  // a fiber for each thread takes the thread sanitizer seconds to make
  run_on_engine(options, reverse_dynamic, Shape{dim3(1), dim3(kMaxThreads), kMaxThreads * sizeof(int)},
                data.data());
  for (unsigned i = 0; i < kMaxThreads; ++i) ASSERT_EQ(data[i], static_cast<int>(kMaxThreads - 1 - i));
}

TEST_P(EngineInOrder, DynamicSharedMemoryIsNaNAtTheStartOfEachBlock) {
  std::vector<float> out(3 * 64, 0.0F);
  run(read_fresh_shared, Shape{dim3(3), dim3(64), 64 * sizeof(float)}, out.data());
  for (const float value : out) ASSERT_TRUE(std::isnan(value));
}

TEST_P(EngineInOrder, VotesSeeAllLanesOfTheirWarp) {
  std::vector<unsigned> out(64);
  run(vote, Shape{dim3(1), dim3(64)}, out.data());
  for (const unsigned odd : out) ASSERT_EQ(odd, 0xAAAAAAAAU);
}

TEST_P(EngineInOrder, ShufflesReadTheLaneTheyNameAndTheirOwnAtTheEndOfTheSegment) {
  std::vector<Shuffles> out(32);
  run(shuffle_all_ways, Shape{dim3(1), dim3(32)}, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const Shuffles& seen = out[static_cast<std::size_t>(lane)];
    EXPECT_EQ(seen.from_five, 5.5);
    EXPECT_EQ(seen.up, lane < 3 ? lane : lane - 3);
    EXPECT_EQ(seen.down, lane > 28 ? lane : lane + 3);
    EXPECT_EQ(seen.mirrored, 31 - lane);
    EXPECT_EQ(seen.in_eights, lane / 8 * 8 + 2);
  }
}

TEST_P(EngineInOrder, WarpsReduceAndMatch) {
  std::vector<unsigned> out(32);
  run(reduce_and_match, Shape{dim3(1), dim3(32)}, out.data());
  for (const unsigned right : out) EXPECT_EQ(right, 1U);
}

TEST_P(EngineInOrder, LanesOfDisjointMasksDoNotWaitForEachOther) {
  std::vector<int> out(32);
  run(sum_of_halves, Shape{dim3(1), dim3(32)}, out.data());
  for (unsigned lane = 0; lane < 32; ++lane) EXPECT_EQ(out[lane], lane % 2 == 1 ? 256 : 240);
}

TEST_P(EngineInOrder, NobodyWaitsForThreadsThatHaveReturned) {
  std::vector<unsigned> out(2 * 64, 77);
  run(some_threads_leave, Shape{dim3(2), dim3(64)}, out.data(), 40U);
  for (unsigned i = 0; i < 2 * 64; ++i) EXPECT_EQ(out[i], i % 64 < 32 ? 32U : i % 64 < 40 ? 8U : 77U);
}

TEST_P(EngineInOrder, BarriersCountTheirPredicates) {
  std::vector<int> out(96);
  run(count_in_barrier, Shape{dim3(1), dim3(96)}, out.data());
  for (const int seen : out) EXPECT_EQ(seen, 32110);
}

TEST_P(EngineInOrder, AWarpPassesDataOverSyncwarp) {
  std::vector<int> data(64);
  std::iota(data.begin(), data.end(), 0);
  run(exchange_by_syncwarp, Shape{dim3(1), dim3(64)}, data.data());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i)], i / 32 * 32 + 31 - i % 32);
}

TEST_P(EngineInOrder, AtomicsLoseNothingBetweenBlocks) {
  unsigned counter = 0;
  float sum = 0;
  unsigned most = 0;
  run(add_all, Shape{dim3(20), dim3(50)}, &counter, &sum, &most);
  EXPECT_EQ(counter, 1000U);
  EXPECT_EQ(sum, 500.0F);
  EXPECT_EQ(most, 68U);
}

// ---- what CUDA leaves undefined

__global__ void shuffle_from_outside_the_mask(float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xFFFFU, 1.0F, 20);
}
__global__ void barrier_and_ballot(float* out) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    out[threadIdx.x] = static_cast<float>(__ballot_sync(kAll, 1));
  }
}
__global__ void ballot_and_shuffle(float* out) {
  out[threadIdx.x] =
      threadIdx.x < 16 ? static_cast<float>(__ballot_sync(kAll, 1)) : __shfl_sync(kAll, 1.0F, 0);
}
__global__ void mask_without_own_lane(float* out) {
  out[threadIdx.x] = __shfl_sync(0xFFFFU, 1.0F, 0);
}
__global__ void overlapping_masks(float* out) {
  out[threadIdx.x] = static_cast<float>(__ballot_sync(threadIdx.x == 0 ? 0x3U : 0x6U, 1));
}
__global__ void two_kinds_of_barrier(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    out[threadIdx.x] = static_cast<float>(__syncthreads_count(1));
  }
}
__global__ void some_wait(float*) {
  if (threadIdx.x < 3) __ballot_sync(0xFU, 1);
  if (threadIdx.x == 3) __syncthreads();
}

// Each call reads its caller's frame, so that no compiler makes a loop of it.
__attribute__((noinline)) int sum_below(int depth, const volatile char* above) {
  volatile char frame[512];
  frame[0] = static_cast<char>(depth);
  return depth == 0 ? above[0] : sum_below(depth - 1, frame) + above[0];
}
__global__ void recurse_too_deep(float* out) {
  const volatile char first = 1;
  out[threadIdx.x] = static_cast<float>(sum_below(1000, &first));
}

TEST(UndefinedByCuda, AShuffleFromOutsideTheMaskGivesNaN) {
  std::vector<float> out(16);
  run_on_engine({}, shuffle_from_outside_the_mask, {dim3(1), dim3(32)}, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

class UndefinedByCudaDeathTest : public ::testing::Test {
 protected:
  UndefinedByCudaDeathTest() { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  static void run(void (*kernel)(float*), unsigned threads) {
    std::vector<float> out(threads);
    run_on_engine({}, kernel, {dim3(1), dim3(threads)}, out.data());
  }
};

TEST_F(UndefinedByCudaDeathTest, ABarrierThatNotAllReachIsADeadlockThatListsTheWaiting) {
  EXPECT_DEATH(run(barrier_and_ballot, 64),
               "deadlock in block \\(0,0,0\\)(.|\n)*thread 0 waits in __syncthreads, where "
               "40 of 64(.|\n)*thread 40 waits in __ballot_sync of mask ffffffff");
}
TEST_F(UndefinedByCudaDeathTest, AWarpOperationThatNotAllLanesReachIsADeadlock) {
  EXPECT_DEATH(run(some_wait, 32), "deadlock(.|\n)*thread 2 waits in __ballot_sync of mask 0000000f");
}
TEST_F(UndefinedByCudaDeathTest, DifferentWarpOperationsMayNotMeet) {
  EXPECT_DEATH(run(ballot_and_shuffle, 32), "different warp operations met");
}
TEST_F(UndefinedByCudaDeathTest, AMaskMustNameTheCallingLane) {
  EXPECT_DEATH(run(mask_without_own_lane, 32), "whose mask lacks the calling lane");
}
TEST_F(UndefinedByCudaDeathTest, MasksThatMeetMayNotOverlap) {
  EXPECT_DEATH(run(overlapping_masks, 3), "overlapping masks met");
}
TEST_F(UndefinedByCudaDeathTest, AStackMayNotOverflow) {
  EXPECT_DEATH(run(recurse_too_deep, 32), "");
}
TEST_F(UndefinedByCudaDeathTest, DifferentBarriersMayNotMeet) {
  EXPECT_DEATH(run(two_kinds_of_barrier, 64), "different variants of __syncthreads met");
}

}  // namespace
}  // namespace onebit::cuda_cpu
