// Which tensor a call is about, and what happens to its residuals.
#include <gtest/gtest.h>

#include "collective/nccl/residual_slots.h"
#include "cuda_cpu/test_streams.h"

namespace onebit::nccl {
namespace {

class ResidualSlotsTest : public ::testing::Test {
 protected:
  cuda_cpu::TestStream stream;
  int left = 1000;  ///< residuals that there is memory for
  ResidualSlots slots{[this](Shape shape) -> std::optional<Residuals> {
    if (left == 0) return std::nullopt;
    --left;
    const MemorySource source = {Allocator(), stream};
    Residuals made{DeviceMemory(source, 4 * shape.count), DeviceMemory(source, 4 * shape.count)};
    EXPECT_CUDA(cudaMemsetAsync(made.worker.data(), 0, made.worker.bytes(), stream));
    return made;
  }};

  static Identity buffer(int number, std::size_t count = 64) {
    return {"", reinterpret_cast<const void*>(static_cast<std::uintptr_t>(4096 * number)), count,
            DataType::kFloat32, ReduceOp::kAvg};
  }
  static Identity tag(const char* name, std::size_t count = 64) {
    return {name, nullptr, count, DataType::kFloat32, ReduceOp::kAvg};
  }
  /// Calls for the identity, and puts `mark` where its residuals are; gives what was there.
  int call(const Identity& identity, int mark) {
    EXPECT_TRUE(slots.reserve(identity.shape));
    const auto found = slots.find(identity);
    if (!found) return -1;
    std::byte* const worker = found->residuals->worker.data();
    if (found->start_anew) {
      EXPECT_CUDA(cudaMemsetAsync(worker, 0, 4, stream));
    }
    int before = 0;
    EXPECT_CUDA(cudaMemcpyAsync(&before, worker, 4, cudaMemcpyDeviceToHost, stream));
    EXPECT_CUDA(cudaMemcpyAsync(worker, &mark, 4, cudaMemcpyHostToDevice, stream));
    stream.synchronize();
    return before;
  }
};

TEST_F(ResidualSlotsTest, BuffersInTheSameOrderKeepTheirs) {
  for (int step = 0; step < 4; ++step) {
    for (int number = 1; number <= 3; ++number) {
      EXPECT_EQ(call(buffer(number), 10 * step + number), step == 0 ? 0 : 10 * (step - 1) + number);
    }
  }
  EXPECT_EQ(slots.resets(), 0u);
}

TEST_F(ResidualSlotsTest, ABufferThatComesAfterAnotherOneThanBeforeStartsAnew) {
  call(buffer(1), 1), call(buffer(2), 2), call(buffer(1), 11), call(buffer(2), 12);
  EXPECT_EQ(call(buffer(2), 22), 0);
  EXPECT_EQ(slots.resets(), 1u);
}

TEST_F(ResidualSlotsTest, TheSameBufferWithAnotherCountTypeOrOpIsAnotherTensor) {
  call(buffer(1), 7);
  Identity other = buffer(1);
  other.type = DataType::kBFloat16;
  EXPECT_EQ(call(other, 8), 0);
  other.op = ReduceOp::kSum;
  EXPECT_EQ(call(other, 8), 0);
  EXPECT_EQ(call(buffer(1, 128), 8), 0);
}

TEST_F(ResidualSlotsTest, TagsKeepTheirsInAnyOrder) {
  call(tag("a"), 1), call(tag("b"), 2), call(tag("b"), 3);
  EXPECT_EQ(call(tag("a"), 4), 1);
  EXPECT_EQ(call(tag("b"), 5), 3);
  EXPECT_EQ(slots.resets(), 0u);
}

TEST_F(ResidualSlotsTest, ATagWithAnotherCountStartsAnewAndWhatWasReservedStays) {
  call(tag("a"), 1);
  left = 1;
  EXPECT_EQ(call(tag("a", 128), 2), 0);
  left = 0;
  EXPECT_EQ(call(tag("b", 64), 3), 0);
  EXPECT_EQ(call(tag("a", 128), 4), 2);
}

TEST_F(ResidualSlotsTest, MemoryStaysBoundedWhenEveryCallHasANewBuffer) {
  for (int number = 1; number < 500; ++number) EXPECT_EQ(call(buffer(number), number), 0);
  EXPECT_LE(slots.bytes(), 128u * 2 * 4 * 64);
}

TEST_F(ResidualSlotsTest, ManyTensorsOfOneSizeKeepTheirs) {
  for (int step = 0; step < 3; ++step) {
    for (int number = 1; number <= 120; ++number)
      EXPECT_EQ(call(buffer(number), number), step == 0 ? 0 : number);
  }
}

TEST_F(ResidualSlotsTest, WhatHasNotComeForLongGivesItsMemoryToNewBuffers) {
  for (int step = 0; step < 40; ++step) call(buffer(1), 1), call(buffer(2), 2);
  for (int step = 0; step < 40; ++step) call(buffer(3), 1), call(buffer(4), 2);
  const std::size_t before = slots.bytes();
  EXPECT_EQ(call(buffer(5), 5), 0);
  EXPECT_EQ(slots.bytes(), before);
}

TEST_F(ResidualSlotsTest, WithoutMemoryTheOldestTensorOfTheCountGivesItsUp) {
  left = 2;
  call(buffer(1), 1), call(buffer(2), 2);
  EXPECT_EQ(call(buffer(3), 3), 0);
  EXPECT_EQ(call(buffer(1), 4), 0) << "it was the one given up";
  EXPECT_EQ(slots.bytes(), 2u * 2 * 4 * 64);
}

TEST_F(ResidualSlotsTest, AReservedCountAlwaysHasResiduals) {
  EXPECT_TRUE(slots.reserve(64));
  left = 0;
  EXPECT_TRUE(slots.reserve(64));
  EXPECT_FALSE(slots.reserve(65));
  EXPECT_EQ(call(tag("a"), 1), 0);
  EXPECT_EQ(call(tag("b"), 2), 0);
}

}  // namespace
}  // namespace onebit::nccl
