// The stand-in for NCCL: each operation gives what NCCL's gives, for all types, in place and out of place,
// any number of ranks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda_cpu/nccl_ranks.h"

namespace onebit::cuda_cpu {
namespace {

/// A device buffer of T.
template <typename T>
class Buffer {
 public:
  Buffer(const NcclRank& rank, std::vector<T> values) : rank_(rank), count_(values.size()) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(1, count_) * sizeof(T)));
    EXPECT_CUDA(
        cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, rank.stream));
  }
  Buffer(const NcclRank& rank, std::size_t count) : Buffer(rank, std::vector<T>(count, T(77.0F))) {}
  ~Buffer() { EXPECT_CUDA(cudaFree(data_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return data_; }
  std::vector<float> read() const {
    std::vector<T> values(count_, T(0.0F));
    EXPECT_CUDA(
        cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, rank_.stream));
    EXPECT_CUDA(cudaStreamSynchronize(rank_.stream));
    std::vector<float> result(count_);
    std::transform(values.begin(), values.end(), result.begin(),
                   [](T value) { return static_cast<float>(value); });
    return result;
  }

 private:
  const NcclRank rank_;
  std::size_t count_;
  T* data_ = nullptr;
};

/// What rank `rank` gives at element i: small whole numbers, whose sums and products are exact in every type.
float given(int rank, std::size_t i) {
  return static_cast<float>((i * 3 + static_cast<std::size_t>(rank)) % 3 + 1);
}

float expected(ncclRedOp_t op, int ranks, std::size_t i) {
  float result = given(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const float other = given(rank, i);
    result = op == ncclProd  ? result * other
             : op == ncclMax ? std::max(result, other)
             : op == ncclMin ? std::min(result, other)
                             : result + other;
  }
  return result;
}

template <typename T>
std::vector<T> gift(int rank, std::size_t count) {
  std::vector<T> values(count, T(0.0F));
  for (std::size_t i = 0; i < count; ++i) values[i] = T(given(rank, i));
  return values;
}

template <typename T>
void check_allreduce(const NcclRank& here, ncclDataType_t type, ncclRedOp_t op, std::size_t count,
                     bool in_place) {
  const Buffer<T> send(here, gift<T>(here.rank, count));
  const Buffer<T> receive(here, count);
  T* const target = in_place ? send.data() : receive.data();
  EXPECT_NCCL(ncclAllReduce(send.data(), target, count, type, op, here.comm, here.stream));
  const std::vector<float> result = (in_place ? send : receive).read();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(result[i], expected(op, here.ranks, i)) << "type " << type << " op " << op << " element " << i;
  }
}

TEST(NcclAllReduce, SumsAreRightForAnyCountAndNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 7, 8}) {
    run_nccl_ranks(ranks, [](const NcclRank& here) {
      for (const std::size_t count : {0, 1, 2, 7, 8, 1009, 100003}) {
        check_allreduce<float>(here, ncclFloat, ncclSum, count, false);
        check_allreduce<float>(here, ncclFloat, ncclSum, count, true);
      }
    });
  }
}

TEST(NcclAllReduce, EveryTypeHasEveryOperation) {
  run_nccl_ranks(3, [](const NcclRank& here) {
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin}) {
      check_allreduce<std::int8_t>(here, ncclInt8, op, 100, false);
      check_allreduce<std::uint8_t>(here, ncclUint8, op, 100, false);
      check_allreduce<std::int32_t>(here, ncclInt32, op, 100, false);
      check_allreduce<std::uint32_t>(here, ncclUint32, op, 100, false);
      check_allreduce<std::int64_t>(here, ncclInt64, op, 100, false);
      check_allreduce<std::uint64_t>(here, ncclUint64, op, 100, false);
      check_allreduce<__half>(here, ncclFloat16, op, 100, true);
      check_allreduce<__nv_bfloat16>(here, ncclBfloat16, op, 100, true);
      check_allreduce<float>(here, ncclFloat32, op, 100, true);
      check_allreduce<double>(here, ncclFloat64, op, 100, true);
    }
  });
}

TEST(NcclAllReduce, AveragesDivideBeforeTheSumOfFloatsAndAfterTheSumOfIntegers) {
  run_nccl_ranks(4, [](const NcclRank& here) {
    const Buffer<float> floats(here, std::vector<float>(10, static_cast<float>(here.rank)));
    EXPECT_NCCL(ncclAllReduce(floats.data(), floats.data(), 10, ncclFloat, ncclAvg, here.comm, here.stream));
    for (const float value : floats.read()) EXPECT_EQ(value, 1.5F);
    const Buffer<std::int32_t> integers(here, std::vector<std::int32_t>(10, here.rank));
    EXPECT_NCCL(
        ncclAllReduce(integers.data(), integers.data(), 10, ncclInt32, ncclAvg, here.comm, here.stream));
    for (const float value : integers.read()) EXPECT_EQ(value, 1.0F);
  });
}

TEST(NcclAllReduce, APremultipliedSumTakesItsScalarFromTheHostAtOnceOrFromTheDeviceWhenItRuns) {
  run_nccl_ranks(2, [](const NcclRank& here) {
    float scalar = 3.0F;
    ncclRedOp_t from_host{};
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&from_host, &scalar, ncclFloat, ncclScalarHostImmediate, here.comm));
    scalar = 100.0F;
    const Buffer<float> data(here, std::vector<float>(10, 1.0F));
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, from_host, here.comm, here.stream));
    EXPECT_NCCL(ncclRedOpDestroy(from_host, here.comm));  // may go before the operation runs
    for (const float value : data.read()) EXPECT_EQ(value, 6.0F);
    const Buffer<float> on_device(here, std::vector<float>(1, static_cast<float>(here.rank)));
    ncclRedOp_t from_device{};
    EXPECT_NCCL(
        ncclRedOpCreatePreMulSum(&from_device, on_device.data(), ncclFloat, ncclScalarDevice, here.comm));
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, from_device, here.comm, here.stream));
    for (const float value : data.read()) EXPECT_EQ(value, 6.0F);
    EXPECT_NCCL(ncclRedOpDestroy(from_device, here.comm));
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 10, ncclFloat, from_device, here.comm, here.stream),
              ncclInvalidArgument);
  });
}

TEST(NcclCollectives, ReduceAndReduceScatterGiveTheSumToWhomItIsFor) {
  run_nccl_ranks(3, [](const NcclRank& here) {
    const Buffer<float> send(here, gift<float>(here.rank, 3 * 1009));
    const Buffer<float> receive(here, 3 * 1009);
    EXPECT_NCCL(
        ncclReduceScatter(send.data(), receive.data(), 1009, ncclFloat, ncclSum, here.comm, here.stream));
    std::vector<float> result = receive.read();
    for (std::size_t i = 0; i < 1009; ++i) {
      ASSERT_EQ(result[i], expected(ncclSum, 3, static_cast<std::size_t>(here.rank) * 1009 + i));
    }
    EXPECT_EQ(result[1009], 77.0F);
    const Buffer<float> of_root(here, 1009);
    EXPECT_NCCL(ncclReduce(send.data(), of_root.data(), 1009, ncclFloat, ncclSum, 1, here.comm, here.stream));
    result = of_root.read();
    for (std::size_t i = 0; i < 1009; ++i)
      ASSERT_EQ(result[i], here.rank == 1 ? expected(ncclSum, 3, i) : 77.0F);
  });
}

TEST(NcclCollectives, BlocksGoWhereTheyBelong) {
  run_nccl_ranks(3, [](const NcclRank& here) {
    constexpr std::size_t kCount = 5;
    std::vector<float> values;
    for (int to = 0; to < 3; ++to)
      values.insert(values.end(), kCount, static_cast<float>(10 * here.rank + to));
    const Buffer<float> send(here, values);
    const auto blocks = [](const Buffer<float>& buffer) {
      const std::vector<float> all = buffer.read();
      std::vector<float> firsts;
      for (std::size_t i = 0; i < all.size(); i += kCount) firsts.push_back(all[i]);
      return firsts;
    };
    const auto r = static_cast<float>(here.rank);
    using Blocks = std::vector<float>;
    const Buffer<float> gathered(here, 3 * kCount);
    EXPECT_NCCL(ncclAllGather(send.data(), gathered.data(), kCount, ncclFloat, here.comm, here.stream));
    EXPECT_EQ(blocks(gathered), (Blocks{0, 10, 20}));
    const Buffer<float> exchanged(here, 3 * kCount);
    EXPECT_NCCL(ncclAlltoAll(send.data(), exchanged.data(), kCount, ncclFloat, here.comm, here.stream));
    EXPECT_EQ(blocks(exchanged), (Blocks{r, 10 + r, 20 + r}));
    const Buffer<float> at_root(here, 3 * kCount);
    EXPECT_NCCL(ncclGather(send.data(), at_root.data(), kCount, ncclFloat, 2, here.comm, here.stream));
    EXPECT_EQ(blocks(at_root), here.rank == 2 ? (Blocks{0, 10, 20}) : (Blocks{77, 77, 77}));
    const Buffer<float> scattered(here, kCount);
    EXPECT_NCCL(ncclScatter(send.data(), scattered.data(), kCount, ncclFloat, 1, here.comm, here.stream));
    EXPECT_EQ(blocks(scattered), (Blocks{10 + r}));
    const Buffer<float> broadcast(here, gift<float>(here.rank, kCount));
    EXPECT_NCCL(ncclBcast(broadcast.data(), kCount, ncclFloat, 2, here.comm, here.stream));
    EXPECT_EQ(blocks(broadcast), (Blocks{given(2, 0)}));
  });
}

TEST(NcclSendRecv, AGroupMovesMoreThanARingHoldsBetweenAllAndWithOneself) {
  run_nccl_ranks(3, [](const NcclRank& here) {
    constexpr std::size_t kCount = 300007;  // 1.2 MB a message; a ring holds 256 KiB
    const Buffer<float> send(here, std::vector<float>(kCount, static_cast<float>(here.rank + 1)));
    const Buffer<float> receive(here, 3 * kCount);
    EXPECT_NCCL(ncclGroupStart());
    for (int peer = 0; peer < 3; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * kCount;
      EXPECT_NCCL(ncclSend(send.data(), kCount, ncclFloat, peer, here.comm, here.stream));
      EXPECT_NCCL(ncclRecv(receive.data() + at, kCount, ncclFloat, peer, here.comm, here.stream));
    }
    EXPECT_NCCL(ncclGroupEnd());
    const std::vector<float> result = receive.read();
    for (std::size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], static_cast<float>(i / kCount + 1));
  });
}

TEST(NcclSendRecv, MessagesBetweenTwoRanksKeepTheirOrder) {
  run_nccl_ranks(2, [](const NcclRank& here) {
    const Buffer<float> data(here,
                             here.rank == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>{0, 0, 0});
    EXPECT_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; ++i) {
      EXPECT_NCCL(here.rank == 0 ? ncclSend(data.data() + i, 1, ncclFloat, 1, here.comm, here.stream)
                                 : ncclRecv(data.data() + i, 1, ncclFloat, 0, here.comm, here.stream));
    }
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(data.read(), (std::vector<float>{1, 2, 3}));
  });
}

}  // namespace
}  // namespace onebit::cuda_cpu
