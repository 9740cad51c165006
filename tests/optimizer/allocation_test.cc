// A step without its exchange takes no memory from the system, in any stage, with threads and without.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "optimizer/training.h"

namespace {
std::atomic<std::size_t> allocations{0};

void* count_and_try(std::size_t bytes) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* count_and_allocate(std::size_t bytes) {
  void* const memory = count_and_try(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return count_and_allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return count_and_allocate(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return count_and_try(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return count_and_try(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace onebit::testing {
namespace {

TEST(Counter, CountsAllocations) {
  const std::size_t before = allocations;
  const std::vector<float> some(1000);
  EXPECT_EQ(allocations, before + 1);
}

TEST(Step, AllocatesNothing) {
  for (const Kind kind : kAllKinds) {
    for (const auto& sizes : {std::vector<std::size_t>{100, 0, 33}, {300'000, 7, 100'000}}) {
      for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
        SCOPED_TRACE(name_of(kind));
        auto communicator = lone_communicator("ONEBIT_THREADS=2");
        ASSERT_TRUE(ok(communicator.status()));
        Options options = short_options(kind);
        options.gradient_clipping = 1;
        std::vector<std::uint16_t> narrow(sizes[0]);
        Worker worker(options, sizes, **communicator, [&](std::vector<TensorSpec>& tensors) {
          if (type == DataType::kFloat32) return;
          tensors[0].type = type;
          tensors[0].parameters = narrow.data();
        });
        for (int step = 1; step <= 60; ++step) {
          worker.set_gradients(step);
          const std::size_t before = allocations;
          ASSERT_TRUE(worker.take().ok());
          if (step == 1) continue;  // ranks compare their tensors, and threads start
          EXPECT_EQ(allocations, before) << "step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace onebit::testing
