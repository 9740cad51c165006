// A state that was saved in host memory goes on in a GPU's, and the other way round, on the same number of
// ranks bit for bit.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "device_ranks.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

const Tensors kTensors{.sizes = kMixedSizes, .masked = true, .groups = 2};

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(directory))
    names.push_back(each.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// A file's header, but for when and by which job it was saved, and its size.
std::string head_of(const std::string& path) {
  constexpr std::size_t kHeader = 80, kStamp = 24, kStampBytes = 24;
  const std::string bytes = read_bytes(path);
  return bytes.substr(0, kStamp) + bytes.substr(kStamp + kStampBytes, kHeader - kStamp - kStampBytes) +
         std::to_string(bytes.size());
}

class OfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DeviceCheckpoint, OfRanks, ::testing::Values(1, 2, 3));

/// Trains to `at`, saves both twins; each is loaded by a new one of the other kind, which must go on as the
/// first ones do.
void expect_to_go_on_crosswise(int ranks, const onebitOptimizerConfig_t& config, const Tensors& tensors,
                               int at, bool whole) {
  const TemporaryDirectory of_host, of_device;
  run_twin_ranks(ranks, [&](TwinRank& here) {
    const auto first = here.twins(config, tensors);
    for (int step = 1; step <= at; ++step) ASSERT_TRUE(first->step(step));
    const auto save = whole ? onebitOptimizerSaveWhole : onebitOptimizerSave;
    ASSERT_TRUE(succeeded(save(first->host(), of_host.path().c_str())));
    ASSERT_TRUE(succeeded(save(first->device(), of_device.path().c_str())));
    ASSERT_TRUE(succeeded(onebitBarrier(here.comm)));
    ASSERT_EQ(names_in(of_host.path()), names_in(of_device.path()));
    for (const std::string& name : names_in(of_host.path())) {
      EXPECT_EQ(head_of(of_host.path() + "/" + name), head_of(of_device.path() + "/" + name));
    }
    const auto second = here.twins(config, tensors);
    ASSERT_TRUE(succeeded(onebitOptimizerLoad(second->host(), of_device.path().c_str())));
    ASSERT_TRUE(succeeded(onebitOptimizerLoad(second->device(), of_host.path().c_str())));
    EXPECT_TRUE(second->same_parameters());
    second->expect_same_state();
    for (int step = at + 1; step <= at + 5; ++step) {
      ASSERT_TRUE(first->step(step));
      ASSERT_TRUE(second->step(step));
      ASSERT_EQ(first->device_parameters(), second->device_parameters()) << step;
    }
  });
}

TEST_P(OfRanks, GoesOnInTheOtherMemoryBitForBit) {
  for (const auto type : kAllTypes) {
    for (const int at : {5, 14, 27}) {
      SCOPED_TRACE(std::to_string(type) + ", step " + std::to_string(at));
      expect_to_go_on_crosswise(GetParam(), short_config(type), kTensors, at, at == 14);
    }
  }
}

TEST_P(OfRanks, InDeepspeedCompatGoesOnInTheOtherMemoryBitForBit) {
  for (const auto type : kOneBitTypes) {
    auto config = short_config(type);
    config.deepspeed_compat = 1;
    config.gradient_clipping = 1;
    expect_to_go_on_crosswise(GetParam(), config, kTensors, 23, false);
  }
}

TEST_P(OfRanks, Of16BitsGoesOnInTheOtherMemoryBitForBit) {
  Tensors tensors = kTensors;
  tensors.parameters = tensors.gradients = onebitBfloat16;
  expect_to_go_on_crosswise(GetParam(), short_config(onebitOneBitLamb), tensors, 15, false);
}

TEST(DeviceCheckpoint, OfAnotherNumberOfRanksIsSharedOutAsTheHostsIs) {
  for (const auto type : kOneBitTypes) {
    for (const auto& [from, to] : {std::pair{3, 2}, {2, 3}, {2, 1}, {1, 2}}) {
      SCOPED_TRACE(std::to_string(type) + ", from " + std::to_string(from) + " ranks to " +
                   std::to_string(to));
      const TemporaryDirectory of_host, of_device;
      run_twin_ranks(from, [&](TwinRank& here) {
        const auto twins = here.twins(short_config(type), kTensors);
        for (int step = 1; step <= 22; ++step) ASSERT_TRUE(twins->step(step));
        ASSERT_TRUE(succeeded(onebitOptimizerSave(twins->host(), of_host.path().c_str())));
        ASSERT_TRUE(succeeded(onebitOptimizerSave(twins->device(), of_device.path().c_str())));
      });
      run_twin_ranks(to, [&](TwinRank& here) {
        const auto twins = here.twins(short_config(type), kTensors);
        ASSERT_TRUE(succeeded(onebitOptimizerLoad(twins->host(), of_host.path().c_str())));
        ASSERT_TRUE(succeeded(onebitOptimizerLoad(twins->device(), of_device.path().c_str())));
        for (int step = 23; step <= 30; ++step) ASSERT_TRUE(twins->step(step));
        twins->expect_same_state();
      });
    }
  }
}

TEST(DeviceCheckpoint, WhichOneRankCannotLoadLoadsNowhereAndChangesNothing) {
  const TemporaryDirectory whole, empty;
  run_twin_ranks(2, [&](TwinRank& here) {
    const auto twins = here.twins(short_config(onebitOneBitLamb), kTensors);
    for (int step = 1; step <= 14; ++step) ASSERT_TRUE(twins->step(step));
    ASSERT_TRUE(succeeded(onebitOptimizerSave(twins->device(), whole.path().c_str())));
    ASSERT_TRUE(twins->step(15));
    const std::string directory = here.rank == 0 ? whole.path() : empty.path();
    EXPECT_EQ(onebitOptimizerLoad(twins->device(), directory.c_str()), onebitDataError);
    EXPECT_THAT(onebitGetLastError(nullptr),
                ::testing::HasSubstr(here.rank == 0 ? "rank 1 cannot load" : "has no state"));
    for (int step = 16; step <= 18; ++step) ASSERT_TRUE(twins->step(step));
  });
}

}  // namespace
}  // namespace onebit::testing
