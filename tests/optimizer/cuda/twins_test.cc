// An optimizer in a GPU's memory takes the steps of the one in host memory, bit for bit.

#include <gmock/gmock.h>

#include "device_ranks.h"

namespace onebit::testing {
namespace {

constexpr int kSteps = 36;

/// `ranks` ranks take kSteps steps with both twins.
void expect_the_same_steps(int ranks, const onebitOptimizerConfig_t& config, const Tensors& tensors,
                           const std::function<OptimizerTwins::Spoil(int rank, int step)>& spoil = {},
                           std::size_t without = SIZE_MAX) {
  run_twin_ranks(ranks, [&](TwinRank& here) {
    const auto twins = here.twins(config, tensors);
    for (int step = 1; step <= kSteps; ++step) {
      const auto change = spoil ? spoil(here.rank, step) : OptimizerTwins::Spoil();
      ASSERT_TRUE(twins->step(step, change, step % 3 == 0 ? without : SIZE_MAX));
    }
    twins->expect_same_state();
    EXPECT_EQ(OptimizerTwins::info(twins->device()).compressed, config.type >= onebitOneBitLamb ? 1 : 0);
  });
}

class OfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Twins, OfRanks, ::testing::Values(1, 2, 3));

TEST_P(OfRanks, OfAllTypesTakeTheSameSteps) {
  for (const auto type : kAllTypes) {
    SCOPED_TRACE(type);
    expect_the_same_steps(GetParam(), short_config(type), {kMixedSizes});
  }
}

TEST_P(OfRanks, InDeepspeedCompatTakeTheSameSteps) {
  for (const auto type : kOneBitTypes) {
    SCOPED_TRACE(type);
    auto config = short_config(type);
    config.deepspeed_compat = 1;
    expect_the_same_steps(GetParam(), config, {.sizes = kMixedSizes, .masked = true, .groups = 2});
  }
}

TEST_P(OfRanks, ThatClipAndSkipTakeTheSameSteps) {
  for (const auto type : kAllTypes) {
    SCOPED_TRACE(type);
    auto config = short_config(type);
    config.gradient_clipping = 0.5;
    expect_the_same_steps(GetParam(), config, {.sizes = kMixedSizes, .groups = 2}, [&](int rank, int step) {
      return [=](std::size_t tensor, std::size_t i, float value) {
        if (step % 5 != 2 || rank != 0 || tensor != 4 || i != 17) return value;
        return step % 2 == 0 ? std::nanf("") : 2e12F;
      };
    });
  }
}

TEST_P(OfRanks, WithMasksAndElementsThatNeverHaveAGradientTakeTheSameSteps) {
  for (const auto type : kAllTypes) {
    SCOPED_TRACE(type);
    expect_the_same_steps(
        GetParam(), short_config(type), {.sizes = kMixedSizes, .masked = true},
        [](int, int) {
          return [](std::size_t, std::size_t i, float value) { return i % 11 == 3 ? 0 : value; };
        },
        3);
  }
}

TEST_P(OfRanks, WithAndWithoutWhatThePapersDoNotHaveTakeTheSameSteps) {
  for (const auto type : {onebitOneBitLamb, onebitOneBitAdam, onebitZeroOneAdam}) {
    for (const int norm_factor : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << type << " " << norm_factor);
      auto config = short_config(type);
      config.freeze_step = config.var_freeze_step = 3;
      config.norm_factor = norm_factor;
      config.bias_correction = 1 - norm_factor;
      expect_the_same_steps(
          GetParam(), config, {.sizes = kMixedSizes, .masked = true, .groups = 2},
          [](int, int) {
            return [](std::size_t, std::size_t i, float value) { return i % 11 == 3 ? 0 : value; };
          },
          3);
    }
  }
}

TEST_P(OfRanks, Of16BitsTakeTheSameSteps) {
  for (const auto type : kAllTypes) {
    SCOPED_TRACE(type);
    const auto narrow = type % 2 == 0 ? onebitFloat16 : onebitBfloat16;
    expect_the_same_steps(GetParam(), short_config(type),
                          {.sizes = kMixedSizes, .parameters = narrow, .gradients = narrow});
  }
  expect_the_same_steps(GetParam(), short_config(onebitOneBitLamb),
                        {.sizes = kMixedSizes, .parameters = onebitFloat16, .gradients = onebitFloat32});
  expect_the_same_steps(GetParam(), short_config(onebitZeroOneAdam),
                        {.sizes = kMixedSizes, .parameters = onebitFloat32, .gradients = onebitBfloat16});
}

TEST_P(OfRanks, ThatFreezeByThemselvesDoSoInTheSameStep) {
  for (const auto type : {onebitOneBitLamb, onebitOneBitAdam}) {
    auto config = short_config(type);
    config.freeze_step = ONEBIT_FREEZE_AUTO;
    config.group.beta2 = 0.5;
    run_twin_ranks(GetParam(), [&](TwinRank& here) {
      const auto twins = here.twins(config, {kMixedSizes});
      int frozen = 0;
      for (int step = 1; step <= 90; ++step) {
        ASSERT_TRUE(twins->step(step));
        const int compressed = OptimizerTwins::info(twins->device()).compressed;
        ASSERT_EQ(compressed, OptimizerTwins::info(twins->host()).compressed) << step;
        if (compressed != 0 && frozen++ == 10) break;
      }
      EXPECT_GT(frozen, 0);
    });
  }
}

TEST_P(OfRanks, WithoutBoundsFrozenByHandAndWithNewLearningRatesTakeTheSameSteps) {
  for (const auto type : {onebitOneBitLamb, onebitOneBitAdam}) {
    auto config = short_config(type);
    config.freeze_step = 1000;
    config.bound_moves = 0;
    run_twin_ranks(GetParam(), [&](TwinRank& here) {
      const auto twins = here.twins(config, {kMixedSizes});
      for (int step = 1; step <= 20; ++step) {
        for (const auto each : {twins->host(), twins->device()}) {
          ASSERT_TRUE(succeeded(onebitOptimizerSetLearningRate(each, 0, 0.01 / step)));
          if (step == 8) {
            ASSERT_TRUE(succeeded(onebitOptimizerFreeze(each)));
          }
        }
        ASSERT_TRUE(twins->step(step));
      }
    });
  }
}

TEST(Twins, OfManyTensorsAndLargeOnesTakeTheSameSteps) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 100; ++i) sizes.push_back(i % 13);
  sizes.push_back(20 * 2048 + 3);
  for (const auto type : {onebitOneBitLamb, onebitZeroOneAdam}) {
    auto config = short_config(type);
    config.gradient_clipping = 1;
    config.freeze_step = 3;
    config.var_freeze_step = 3;
    run_twin_ranks(2, [&](TwinRank& here) {
      const auto twins = here.twins(config, {sizes});
      for (int step = 1; step <= 6; ++step) ASSERT_TRUE(twins->step(step));
      twins->expect_same_state();
    });
  }
}

TEST(Twins, OfNoTensorsAndOfEmptyOnesTakeTheSameSteps) {
  for (const auto type : kAllTypes) {
    for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>{}, {0, 0}}) {
      run_twin_ranks(2, [&](TwinRank& here) {
        const auto twins = here.twins(short_config(type), {sizes});
        for (int step = 1; step <= 25; ++step) ASSERT_TRUE(twins->step(step));
      });
    }
  }
}

TEST(Twins, TakeTheSettingsOfBlocksAndScales) {
  run_twin_ranks(2, [&](TwinRank& here) {
    auto config = short_config(onebitOneBitAdam);
    config.freeze_step = 2;
    const auto usual = here.twins(config, {kMixedSizes});
    OptimizerTwins other(config, {kMixedSizes}, here.rank, nullptr, here.nccl_comm, here.stream,
                         "ONEBIT_BLOCK=256\nONEBIT_SCALE=mean");
    ASSERT_TRUE(succeeded(other.made()));
    for (int step = 1; step <= 6; ++step) {
      ASSERT_TRUE(usual->step(step));
      other.set_gradients(step);
      ASSERT_TRUE(succeeded(other.step_device()));
      EXPECT_EQ(step <= 2, usual->device_parameters() == other.device_parameters()) << step;
    }
  });
}

TEST(Twins, TakeNoDeviceMemoryInAStep) {
  for (const auto type : kAllTypes) {
    for (const int compat : {0, 1}) {
      if (compat == 1 && type < onebitOneBitLamb) continue;
      run_twin_ranks(2, [&](TwinRank& here) {
        auto config = short_config(type);
        config.deepspeed_compat = compat;
        config.gradient_clipping = 1;
        const auto twins = here.twins(config, {kMixedSizes});
        std::size_t due = 0, left = 0, all = 0;
        EXPECT_CUDA(cudaMemGetInfo(&due, &all));
        for (int step = 1; step <= 30; ++step) {
          ASSERT_TRUE(twins->step(step));
          EXPECT_CUDA(cudaMemGetInfo(&left, &all));
          ASSERT_EQ(left, due) << step;
        }
      });
    }
  }
}

TEST(Twins, WithoutNcclAreOfOneRank) {
  run_twin_ranks(1, [&](TwinRank& here) {
    OptimizerTwins twins(short_config(onebitOneBitLamb), {kMixedSizes}, 0, here.comm, nullptr, here.stream);
    ASSERT_TRUE(succeeded(twins.made()));
    for (int step = 1; step <= 20; ++step) ASSERT_TRUE(twins.step(step));
  });
}

}  // namespace
}  // namespace onebit::testing
