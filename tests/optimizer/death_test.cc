// A rank that dies in a step: the others get an error, their parameters are those before the step, and what
// they save lets a new job go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/optimizer.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using ::testing::HasSubstr;

/// Large, so that the kill comes in the middle of an exchange.
constexpr std::size_t kCount = 1'000'000;

onebitOptimizerConfig_t config_of(const std::string& type) {
  onebitOptimizerConfig_t config;
  EXPECT_EQ(onebitOptimizerParseConfig(("{\"type\": \"" + type + "\"}").c_str(), &config), onebitSuccess);
  config.group.lr = 1e-3;
  config.freeze_step = 3;
  config.var_freeze_step = 3;
  return config;
}

/// Steps without end; when a step fails, checks that it has changed nothing, and saves.
ONEBIT_ROLE(trains_until_an_error) {
  onebitComm_t comm = rank.init();
  if (comm == nullptr) return;
  std::vector<float> w(kCount, 1.0F), g(kCount);
  const onebitTensor_t tensor{"w", w.data(), kCount, onebitFloat32, onebitFloat32, 0, nullptr};
  const onebitOptimizerConfig_t config = config_of(rank.variable("TEST_TYPE"));
  onebitOptimizer_t optimizer = nullptr;
  rank.check_ok(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, comm), "create");
  const void* gradients[] = {g.data()};
  Random random(static_cast<std::uint64_t>(rank.number()));
  onebitResult_t result = onebitSuccess;
  std::vector<float> before, m(kCount), m_before(kCount);
  for (int step = 1; result == onebitSuccess; ++step) {
    for (float& each : g) each = random.unit();
    before = w;
    rank.check_ok(onebitOptimizerGetState(optimizer, 0, "exp_avg", m_before.data(), kCount), "state");
    result = onebitOptimizerStep(optimizer, gradients, nullptr);
    if (step == 5) rank.report("under way");
  }
  rank.report_result("ended", result);
  rank.check(w == before, "the failed step has changed parameters");
  rank.check_ok(onebitOptimizerGetState(optimizer, 0, "exp_avg", m.data(), kCount), "state");
  rank.check(m == m_before, "the failed step has changed the momentum");
  rank.check_ok(onebitOptimizerSave(optimizer, rank.variable("TEST_DIRECTORY").c_str()), "save");
  rank.check_ok(onebitOptimizerDestroy(optimizer), "destroy");
  rank.check_ok(onebitCommDestroy(comm), "destroy");
}

class Killed : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, Killed,
                         ::testing::Values("OneBitLamb", "OneBitAdam", "ZeroOneAdam", "Lamb", "Adam"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(Killed, LeavesTheOthersAStateThatANewJobGoesOnWith) {
  for (const int victim : {0, 2}) {
    SCOPED_TRACE(victim);
    const TemporaryDirectory directory;
    Job job("trains_until_an_error", 3, {{"TEST_TYPE", GetParam()}, {"TEST_DIRECTORY", directory.path()}});
    ASSERT_TRUE(job.all_reported("under way", 60));
    ::usleep(20'000);
    job[victim].signal(SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const auto ended = job[rank].await("ended");
      ASSERT_TRUE(ended) << job[rank].log();
      EXPECT_NE(ended->code, onebitSuccess);
      EXPECT_THAT(ended->text, HasSubstr("rank " + std::to_string(victim)));
    }
    ASSERT_TRUE(job.ended_well(victim));
    EXPECT_EQ(files_in(directory.path()), 2U);
    for (const int ranks : {2, 3}) {
      std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks), std::vector<float>(kCount));
      run_ranks(ranks, [&](int rank, onebitComm_t comm) {
        auto& w = weights[static_cast<std::size_t>(rank)];
        const onebitTensor_t tensor{"w", w.data(), kCount, onebitFloat32, onebitFloat32, 0, nullptr};
        const onebitOptimizerConfig_t config = config_of(GetParam());
        onebitOptimizer_t optimizer = nullptr;
        ASSERT_TRUE(succeeded(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, comm)));
        ASSERT_TRUE(succeeded(onebitOptimizerLoad(optimizer, directory.path().c_str())));
        onebitOptimizerInfo_t info{};
        info.size = sizeof info;
        ASSERT_TRUE(succeeded(onebitOptimizerGetInfo(optimizer, &info)));
        EXPECT_GE(info.steps, 5);
        EXPECT_NE(w[0], 0);
        const std::vector<float> g(kCount, 0.1F);
        const void* gradients[] = {g.data()};
        for (int step = 0; step < 3; ++step) {
          ASSERT_TRUE(succeeded(onebitOptimizerStep(optimizer, gradients, nullptr)));
        }
        EXPECT_TRUE(succeeded(onebitOptimizerDestroy(optimizer)));
      });
      for (const auto& w : weights) EXPECT_EQ(w, weights[0]);
    }
  }
}

}  // namespace
}  // namespace onebit::testing
