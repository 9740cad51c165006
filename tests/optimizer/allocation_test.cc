// A whole step takes no memory from the system once each kind of step has been: in any stage, with threads
// and without, with one rank and with several.

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

/// A rank; all ranks are threads of this process, so the counter is of all.
Status step_and_count(const Options& options, const std::vector<std::size_t>& sizes,
                      collective::Communicator& communicator) {
  Worker worker(options, sizes, communicator);
  std::size_t before = 0;
  // From 15 on there is nothing new in the warm-up, which may end with 20; from 45 on nothing at all.
  for (int step = 1; step <= 61; ++step) {
    ONEBIT_RETURN_IF_ERROR(communicator.barrier());
    if (step == 20 || step == 61) {
      EXPECT_EQ(allocations, before) << "before step " << step;
    }
    if (step == 15 || step == 45) before = allocations;
    ONEBIT_RETURN_IF_ERROR(communicator.barrier());
    if (step <= 60) ONEBIT_RETURN_IF_ERROR(worker.step(step));
  }
  return Status();
}

TEST(Step, OfSeveralRanksAllocatesNothing) {
  for (const Kind kind : kAllKinds) {
    for (const bool compat : {false, true}) {
      if (compat && kind < Kind::kOneBitLamb) continue;
      Options options = short_options(kind);
      options.deepspeed_compat = compat;
      options.gradient_clipping = 1;
      for (const int ranks : {2, 3, 4}) {
        for (const auto& sizes : {kOddSizes, std::vector<std::size_t>{200'000, 7, 60'000}}) {
          SCOPED_TRACE(formatted("{}, compat {}, {} ranks", name_of(kind), compat, ranks));
          ASSERT_TRUE(
              ok(run_local_ranks(ranks, "ONEBIT_THREADS=2", [&](int, collective::Communicator& communicator) {
                return step_and_count(options, sizes, communicator);
              })));
        }
      }
    }
  }
}

}  // namespace
}  // namespace onebit::testing
