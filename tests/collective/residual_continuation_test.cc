// Residuals over the life of a job: saved and loaded, resharded among another number of ranks, dropped and
// reset.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "collective/partition.h"
#include "collective/residual_file.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

constexpr const char* kSettings = "ONEBIT_MIN_SIZE=0\nONEBIT_BLOCK=256\n";

std::vector<float> gradient(int rank, int step, std::size_t count) {
  Random random(static_cast<std::uint64_t>(rank) * 7919 + static_cast<std::uint64_t>(step) * 104729 + count);
  std::vector<float> x(count);
  for (float& each : x) each = random.unit();
  return x;
}

struct Tensor {
  const char* tag;
  std::size_t count;
  onebitRedOp_t op;
};
constexpr Tensor kTensors[] = {
    {"first", 5003, onebitAvg}, {"second", 64, onebitSum}, {"third", 20'000, onebitSum}};

/// One step: every tensor reduced; results in turn.
std::vector<float> step(onebitComm_t comm, int rank, int number) {
  std::vector<float> all;
  for (const Tensor& t : kTensors) {
    auto x = gradient(rank, number, t.count);
    EXPECT_TRUE(
        succeeded(onebitAllReduce(x.data(), x.data(), t.count, onebitFloat32, t.op, t.tag, comm, nullptr)));
    all.insert(all.end(), x.begin(), x.end());
  }
  return all;
}

std::size_t memory(onebitComm_t comm, const char* tag) {
  std::size_t bytes = 0;
  EXPECT_TRUE(succeeded(onebitResidualMemory(comm, tag, &bytes)));
  return bytes;
}

TEST(Residuals, SavedAndLoadedGoOnBitForBitAsIfNothingHadHappened) {
  constexpr int kRanks = 3;
  const TemporaryDirectory directory;
  std::vector<std::vector<float>> uninterrupted(8);
  run_ranks(kRanks,
            [&](int rank, onebitComm_t comm) {
              for (int s = 0; s < 8; ++s) {
                auto result = step(comm, rank, s);
                if (rank == 0) uninterrupted[static_cast<std::size_t>(s)] = std::move(result);
              }
            },
            {kSettings});
  run_ranks(kRanks,
            [&](int rank, onebitComm_t comm) {
              for (int s = 0; s < 4; ++s) step(comm, rank, s);
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, directory.path().c_str())));
              step(comm, rank, 99);  // saved is saved
            },
            {kSettings});
  run_ranks(kRanks,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 98);  // loading replaces what there is
              ASSERT_TRUE(succeeded(onebitResidualLoad(comm, directory.path().c_str())));
              for (int s = 4; s < 8; ++s) {
                const auto result = step(comm, rank, s);
                const auto& due = uninterrupted[static_cast<std::size_t>(s)];
                ASSERT_EQ(std::memcmp(result.data(), due.data(), due.size() * sizeof(float)), 0)
                    << "step " << s;
              }
            },
            {kSettings});
}

/// Sums of inputs and of results over all steps, element by element. The difference is what is owed.
struct Books {
  std::vector<double> in, out;
  void post(const std::vector<float>& result, int ranks, int number) {
    in.resize(result.size());
    out.resize(result.size());
    for (std::size_t i = 0; i < result.size(); ++i) out[i] += result[i];
    std::size_t at = 0;
    for (const Tensor& t : kTensors) {
      for (int r = 0; r < ranks; ++r) {
        const auto x = gradient(r, number, t.count);
        for (std::size_t i = 0; i < t.count; ++i)
          in[at + i] += x[i] * (t.op == onebitAvg ? 1.0 / ranks : 1.0);
      }
      at += t.count;
    }
  }
  /// All that is owed, by the files of `ranks` ranks in `directory`.
  void expect_balanced(const std::string& directory, int ranks) const {
    std::vector<double> owed(in.size());
    const auto world = static_cast<std::size_t>(ranks);
    for (std::size_t r = 0; r < world; ++r) {
      collective::ResidualStore store(r, world);
      const Status status = collective::load_residuals(store, "test", directory).status();
      ASSERT_TRUE(status.ok()) << status.message();
      std::size_t at = 0;
      for (const Tensor& t : kTensors) {
        const auto& residual = store.entries().at(t.tag);
        const double weight = t.op == onebitAvg ? 1.0 / ranks : 1.0;
        for (std::size_t i = 0; i < t.count; ++i) owed[at + i] += weight * residual.worker_error.data()[i];
        const auto own = collective::PartitionPlan(t.count, world, 1).partition(r);
        for (std::size_t i = 0; i < own.length; ++i)
          owed[at + own.begin + i] += residual.owner_error.data()[i];
        at += t.count;
      }
    }
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_NEAR(out[i] + owed[i], in[i], 1e-4) << "element " << i;
  }
};

TEST(Residuals, ReshardedAmongOtherRanksOweExactlyWhatWasNotYetGivenBack) {
  for (const auto& [before, after] : {std::pair<int, int>{4, 2}, {2, 4}, {3, 5}}) {
    SCOPED_TRACE(std::to_string(before) + " ranks, then " + std::to_string(after));
    const TemporaryDirectory old_files;
    const TemporaryDirectory new_files;
    Books books;
    const auto run_steps = [&](int ranks, int first, const TemporaryDirectory* from,
                               const TemporaryDirectory& to) {
      run_ranks(ranks,
                [&](int rank, onebitComm_t comm) {
                  if (from != nullptr) {
                    ASSERT_TRUE(succeeded(onebitResidualLoad(comm, from->path().c_str())));
                  }
                  for (int s = first; s < first + 5; ++s) {
                    const auto result = step(comm, rank, s);
                    if (rank == 0) books.post(result, ranks, s);
                  }
                  ASSERT_TRUE(succeeded(onebitResidualSave(comm, to.path().c_str())));
                },
                {kSettings});
      books.expect_balanced(to.path(), ranks);
    };
    run_steps(before, 0, nullptr, old_files);
    run_steps(after, 5, &old_files, new_files);
  }
}

TEST(Residuals, OfOneRankAreKeptForTheNextJob) {
  const TemporaryDirectory of_four;
  const TemporaryDirectory of_one;
  run_ranks(4,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, of_four.path().c_str())));
            },
            {kSettings});
  run_ranks(1,
            [&](int rank, onebitComm_t comm) {
              ASSERT_TRUE(succeeded(onebitResidualLoad(comm, of_four.path().c_str())));
              EXPECT_EQ(step(comm, rank, 1).front(), gradient(0, 1, kTensors[0].count).front())
                  << "one rank is exact";
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, of_one.path().c_str())));
            },
            {kSettings});
  for (std::size_t i = 0; i < 3; ++i) {
    collective::ResidualStore store(0, 1);
    ASSERT_TRUE(collective::load_residuals(store, "test", of_one.path()).ok());
    EXPECT_EQ(store.entries().size(), 3U);
  }
}

TEST(Residuals, TakeTheMemoryThatIsReportedAndResetFreesIt) {
  run_ranks(4,
            [&](int rank, onebitComm_t comm) {
              EXPECT_EQ(memory(comm, nullptr), 0U);
              step(comm, rank, 0);
              // The worker errors of the whole tensor and the owner errors of a quarter, up to a multiple
              // of 8.
              EXPECT_EQ(memory(comm, "third"), (20'000 + 5'000) * sizeof(float));
              EXPECT_EQ(memory(comm, "second"), (64 + 16) * sizeof(float));
              EXPECT_EQ(memory(comm, "unknown"), 0U);
              onebitStats_t stats{};
              stats.size = sizeof stats;
              ASSERT_TRUE(succeeded(onebitCommGetStats(comm, &stats)));
              EXPECT_EQ(stats.residual_bytes, memory(comm, nullptr));
              EXPECT_EQ(memory(comm, nullptr),
                        memory(comm, "first") + memory(comm, "second") + memory(comm, "third"));
              ASSERT_TRUE(succeeded(onebitResidualReset(comm, "third")));
              EXPECT_EQ(memory(comm, "third"), 0U);
              EXPECT_GT(memory(comm, "first"), 0U);
              ASSERT_TRUE(succeeded(onebitResidualReset(comm, "unknown")));
              ASSERT_TRUE(succeeded(onebitResidualReset(comm, nullptr)));
              EXPECT_EQ(memory(comm, nullptr), 0U);
            },
            {kSettings});
}

/// y of `calls` equal calls.
std::vector<float> reduce(onebitComm_t comm, int rank, std::size_t count, onebitRedOp_t op, int calls = 1) {
  std::vector<float> y(count);
  for (int i = 0; i < calls; ++i) {
    const auto x = gradient(rank, 0, count);
    EXPECT_TRUE(succeeded(onebitAllReduce(x.data(), y.data(), count, onebitFloat32, op, "t", comm, nullptr)));
  }
  return y;
}

TEST(Residuals, OfATagWhoseShapeChangesStartAnew) {
  run_ranks(2,
            [&](int rank, onebitComm_t comm) {
              const auto fresh = reduce(comm, rank, 4000, onebitSum);
              const auto second = reduce(comm, rank, 4000, onebitSum);
              EXPECT_NE(fresh, second) << "the first call's error enters the second";
              const std::size_t before = memory(comm, "t");
              reduce(comm, rank, 4100, onebitSum);
              EXPECT_GT(memory(comm, "t"), before);
              EXPECT_EQ(reduce(comm, rank, 4000, onebitSum), fresh) << "after another count";
              reduce(comm, rank, 4000, onebitAvg);
              EXPECT_EQ(reduce(comm, rank, 4000, onebitSum), fresh) << "after another op";
              std::vector<std::uint16_t> half(4000, 0x3C00);
              ASSERT_TRUE(succeeded(onebitAllReduce(half.data(), half.data(), 4000, onebitFloat16, onebitSum,
                                                    "t", comm, nullptr)));
              EXPECT_EQ(reduce(comm, rank, 4000, onebitSum), fresh) << "after another type";
              ASSERT_TRUE(succeeded(onebitResidualReset(comm, "t")));
              EXPECT_EQ(reduce(comm, rank, 4000, onebitSum), fresh) << "after a reset";
            },
            {kSettings});
}

TEST(Residuals, ThatAFailedCallWasChangingAreNotSaved) {
  const TemporaryDirectory directory;
  run_ranks(2,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              // Ranks that disagree: the call fails in its middle.
              std::vector<float> x(20'001, 1.0F);
              const std::size_t count = rank == 0 ? 20'000 : 20'001;
              EXPECT_NE(onebitAllReduce(x.data(), x.data(), count, onebitFloat32, onebitSum, "third", comm,
                                        nullptr),
                        onebitSuccess);
              EXPECT_TRUE(succeeded(onebitResidualSave(comm, directory.path().c_str())))
                  << "what is left can be saved";
              collective::ResidualStore store(static_cast<std::size_t>(rank), 2);
              const Status status = collective::load_residuals(store, "test", directory.path()).status();
              ASSERT_TRUE(status.ok()) << status.message();
              EXPECT_EQ(store.entries().count("third"), 0U);
              EXPECT_EQ(store.entries().count("first"), 1U);
              EXPECT_EQ(store.entries().count("second"), 1U);
            },
            {kSettings});
}

TEST(Residuals, ThatCannotBeLoadedLeaveTheCommunicatorUsable) {
  run_ranks(2,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              const std::size_t before = memory(comm, nullptr);
              EXPECT_NE(onebitResidualLoad(comm, "/no/such/directory"), onebitSuccess);
              EXPECT_THAT(onebitGetLastError(comm), ::testing::HasSubstr("/no/such/directory"));
              EXPECT_NE(onebitResidualSave(comm, "/proc/no/such"), onebitSuccess);
              EXPECT_EQ(memory(comm, nullptr), before);
              step(comm, rank, 1);
            },
            {kSettings});
}

/// Loads after two steps fail on all three ranks for `words`, and leave everything as it was.
void expect_no_rank_loads(const std::function<std::string(int)>& directory_of, const std::string& words) {
  run_ranks(3,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              const std::size_t before = memory(comm, nullptr);
              EXPECT_EQ(onebitResidualLoad(comm, directory_of(rank).c_str()), onebitDataError);
              EXPECT_THAT(onebitGetLastError(comm), ::testing::HasSubstr(words));
              EXPECT_EQ(memory(comm, nullptr), before);
              step(comm, rank, 1);
            },
            {kSettings});
}

TEST(Residuals, AreLoadedByNoRankWhenOneCannot) {
  const TemporaryDirectory shared;
  run_ranks(3,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, shared.path().c_str())));
            },
            {kSettings});
  ASSERT_TRUE(std::filesystem::remove(shared.path() + "/test.rank-1-of-3.residuals"));
  std::vector<std::string> errors(3);
  run_ranks(3,
            [&](int rank, onebitComm_t comm) {
              EXPECT_EQ(onebitResidualLoad(comm, shared.path().c_str()),
                        rank == 1 ? onebitSystemError : onebitDataError);
              errors[static_cast<std::size_t>(rank)] = onebitGetLastError(comm);
            },
            {kSettings});
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1 at 127.0.0.1"));
  EXPECT_THAT(errors[1], ::testing::HasSubstr("rank-1-of-3"));
  EXPECT_THAT(errors[2], ::testing::HasSubstr("rank 1 at 127.0.0.1"));
}

TEST(Residuals, SavedAtDifferentMomentsOnDisksOfTheirOwnAreLoadedByNoRank) {
  const std::array<TemporaryDirectory, 3> disks;
  const auto disk_of = [&](int rank) { return disks[static_cast<std::size_t>(rank)].path(); };
  run_ranks(3,
            [&](int rank, onebitComm_t comm) {
              step(comm, rank, 0);
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, disk_of(rank).c_str())));
              step(comm, rank, 1);
              if (rank == 0) return;  // its second save is lost
              ASSERT_TRUE(succeeded(onebitResidualSave(comm, disk_of(rank).c_str())));
            },
            {kSettings});
  expect_no_rank_loads(disk_of, "different moments");
}

}  // namespace
}  // namespace onebit::testing
