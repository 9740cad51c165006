// Several communicators in one group: ranks may call them in any order, also on one stream.
#include <gtest/gtest.h>

#include <algorithm>

#include "device_levels.h"
#include "support/simulation.h"

namespace onebit::nccl {
namespace {

using testing::input;
using testing::Simulation;

constexpr std::size_t kCommunicators = 3;

/// The communicators of a rank over the same ranks: the one it has, and others made by NCCL's split.
class Communicators {
 public:
  Communicators(DeviceRank& here, const CommunicatorOptions& options) : all_{here.communicator.get()} {
    while (all_.size() < kCommunicators) {
      Comm comm = nullptr;
      EXPECT_EQ(
          linked_nccl().split(reinterpret_cast<Comm>(here.nccl.comm), 0, here.nccl.rank, &comm, nullptr),
          kSuccess);
      CommunicatorOptions own = options;
      own.comm = comm;
      own.nccl = linked_nccl();
      own.device = here.nccl.rank;
      own.codec.rank = static_cast<unsigned>(here.nccl.rank);
      own.codec.ranks = static_cast<unsigned>(here.nccl.ranks);
      auto made = NcclCommunicator::create(own);
      EXPECT_TRUE(made.ok());
      carry_by_test_transport({made->get()});
      all_.push_back(made->get());
      owned_.push_back(std::move(*made));
      comms_.push_back(comm);
    }
  }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;
  ~Communicators() {
    owned_.clear();
    for (const Comm comm : comms_) linked_nccl().destroy(comm);
  }
  NcclCommunicator* operator[](std::size_t i) const { return all_[i]; }

 private:
  std::vector<NcclCommunicator*> all_;
  std::vector<std::unique_ptr<NcclCommunicator>> owned_;
  std::vector<Comm> comms_;
};

/// Each rank calls all communicators in one group on one stream, starting with another one.
void expect_any_order(const CommunicatorOptions& options, std::size_t count, const Hosts& hosts) {
  constexpr int kRanks = 4;
  constexpr int kCalls = 3;
  std::vector<std::vector<float>> x(kCommunicators);
  run_device_ranks(kRanks, options, [&](DeviceRank& here) {
    const Communicators communicators(here, options);
    const auto rank = static_cast<std::size_t>(here.nccl.rank);
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (std::size_t c = 0; c < kCommunicators; ++c) {
      tensors.push_back(std::make_unique<Tensor>(4 * count));
      if (hosts.empty()) continue;
      make_levels(*communicators[c], hosts);
    }
    for (int call = 0; call < kCalls; ++call) {
      std::vector<Request> requests;
      for (std::size_t i = 0; i < kCommunicators; ++i) {
        const std::size_t c = (i + rank) % kCommunicators;
        // Constants stay exact in 1 bit.
        const std::vector<float> values(count, static_cast<float>((rank + 1) * (c + 1)));
        const auto bytes = std::as_bytes(std::span(values));
        tensors[c]->write({bytes.begin(), bytes.end()}, here.nccl.stream);
        EXPECT_CUDA(cudaStreamSynchronize(here.nccl.stream));
        requests.push_back({communicators[c], tensors[c]->data(), tensors[c]->data(), count,
                            DataType::kFloat32, ReduceOp::kSum, "t", here.nccl.stream, false});
      }
      ASSERT_EQ(run(requests), kSuccess);
      for (std::size_t c = 0; c < kCommunicators; ++c) {
        const auto found = tensors[c]->read(here.nccl.stream);
        const auto* const y = reinterpret_cast<const float*>(found.data());
        ASSERT_TRUE(
            std::all_of(y, y + count, [&](float one) { return one == 10.0F * static_cast<float>(c + 1); }))
            << "communicator " << c << " call " << call;
      }
    }
  });
}

TEST(NcclOrder, RanksMayCallTheCommunicatorsOfAGroupInDifferentOrders) {
  expect_any_order({}, 5000, {});
}

TEST(NcclOrder, AlsoWhereTheirCallsAreCutIntoChunks) {
  CommunicatorOptions options;
  options.chunk = 2048;
  expect_any_order(options, 40'000, {});
}

TEST(NcclOrder, AlsoInTwoLevels) {
  expect_any_order({}, 8000, {1, 1, 2, 2});
}

}  // namespace
}  // namespace onebit::nccl
