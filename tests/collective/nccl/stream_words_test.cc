// What a stream and the host tell each other by words of pinned memory. CMake runs it also where the driver
// refuses stream memory operations.
#include <gtest/gtest.h>

#include <cstdlib>

#include "collective/nccl/stream_words.h"
#include "cuda_cpu/test_streams.h"

namespace onebit::nccl {
namespace {

std::unique_ptr<StreamWords> make(cudaStream_t stream) {
  auto made = StreamWords::create(stream);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

TEST(StreamWords, NumbersGoOnPastTheEndOf32Bits) {
  EXPECT_TRUE(has_reached(7, 7));
  EXPECT_TRUE(has_reached(8, 7));
  EXPECT_FALSE(has_reached(7, 8));
  EXPECT_TRUE(has_reached(1, 0xffffffff));
  EXPECT_FALSE(has_reached(0xffffffff, 1));
}

TEST(StreamWords, TakesTheDriversOperationsWhereItHasThem) {
  const cuda_cpu::TestStream stream;
  const char* const allowed = std::getenv("CUDA_CPU_STREAM_MEMORY_OPERATIONS");
  EXPECT_EQ(make(stream)->has_memory_operations(), allowed == nullptr);
}

TEST(StreamWords, AStreamStopsUntilTheHostHasReachedItsNumber) {
  const cuda_cpu::TestStream stream;
  const auto words = make(stream);
  stream.synchronize();
  for (const std::uint32_t number : {5U, 0x80000004U, 3U}) {
    EXPECT_CUDA(words->stop(stream, number));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    words->set_host(number - 1);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    words->set_host(number + 1);
    stream.synchronize();
  }
}

TEST(StreamWords, TheHostSeesWhatTheStreamWroteBeforeItsNumber) {
  const cuda_cpu::TestStream stream;
  const auto words = make(stream);
  const PinnedMemory pinned(64);
  const cuda_cpu::DeviceFloats floats(16, 3.0F);
  EXPECT_CUDA(cudaMemcpyAsync(pinned.data(), floats.data(), 64, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(words->signal(stream, 9));
  while (!has_reached(words->of_stream(), 9)) {
  }
  for (int i = 0; i < 16; ++i) EXPECT_EQ(pinned.as<float>()[i], 3.0F);
  stream.synchronize();
}

}  // namespace
}  // namespace onebit::nccl
