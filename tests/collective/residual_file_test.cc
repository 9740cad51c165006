// Residual files: the newest set is read, and it is written whole or not at all; nothing that is owed is lost
// or doubled when the number of ranks changes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "collective/partition.h"
#include "residual_files.h"

namespace onebit::collective {
namespace {

using onebit::testing::files_in;
using onebit::testing::read_bytes;
using onebit::testing::write_bytes;
using ::testing::HasSubstr;

/// What is owed at each element of `tag` by all ranks together, as it will enter later results.
std::vector<double> owed(const std::vector<ResidualStore>& stores, std::string_view tag) {
  std::vector<double> sum;
  for (const ResidualStore& store : stores) {
    const Residual& residual = store.entries().find(tag)->second;
    const double weight = residual.op == ReduceOp::kAvg ? 1.0 / static_cast<double>(stores.size()) : 1.0;
    sum.resize(residual.count);
    for (std::size_t i = 0; i < residual.count; ++i) sum[i] += weight * residual.worker_error.data()[i];
    const Range own = PartitionPlan(residual.count, stores.size(), 1).partition(store.rank());
    EXPECT_EQ(own.length, residual.owner_error.size());
    for (std::size_t i = 0; i < own.length; ++i) sum[own.begin + i] += residual.owner_error.data()[i];
  }
  return sum;
}

TEST(ResidualFile, GivesBackEveryBitToTheSameRank) {
  const TemporaryDirectory directory;
  save_all(directory, 3);
  EXPECT_EQ(files_in(directory.path()), 3U);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ResidualStore store(rank, 3);
    fill(store, "to be replaced", 10, ReduceOp::kSum);
    const Status status = load_residuals(store, "dp", directory.path()).status();
    ASSERT_TRUE(status.ok()) << status.message();
    expect_equal(store, filled(rank, 3));
  }
}

TEST(ResidualFile, OfNoTagsIsAFileToo) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(save_residuals(ResidualStore(0, 1), "dp", directory.path(), kMoment).ok());
  ResidualStore store = filled(0, 1);
  ASSERT_TRUE(load_residuals(store, "dp", directory.path()).ok());
  EXPECT_TRUE(store.entries().empty());
}

TEST(Resharding, NeitherLosesNorDoublesWhatIsOwed) {
  for (const auto& [before, after] :
       {std::pair<std::size_t, std::size_t>{4, 2}, {2, 4}, {3, 5}, {8, 1}, {1, 3}, {5, 8}}) {
    SCOPED_TRACE(formatted("{} ranks, then {}", before, after));
    const TemporaryDirectory directory;
    save_all(directory, before);
    std::vector<ResidualStore> old_stores;
    for (std::size_t rank = 0; rank < before; ++rank) old_stores.push_back(filled(rank, before));
    std::vector<ResidualStore> new_stores;
    for (std::size_t rank = 0; rank < after; ++rank) {
      new_stores.emplace_back(rank, after);
      const Status status = load_residuals(new_stores.back(), "dp", directory.path()).status();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (const auto& [tag, residual] : old_stores[0].entries()) {
      const auto was = owed(old_stores, tag);
      const auto is = owed(new_stores, tag);
      ASSERT_EQ(was.size(), is.size());
      for (std::size_t i = 0; i < was.size(); ++i)
        ASSERT_NEAR(is[i], was[i], 1e-5) << tag << " element " << i;
    }
  }
}

TEST(Resharding, NeedsTheFileOfEveryOldRank) {
  const TemporaryDirectory directory;
  save_all(directory, 4);
  std::filesystem::remove(file_of(directory, 2, 4));
  ResidualStore store = filled(0, 2);
  const Status status = load_residuals(store, "dp", directory.path()).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("rank-2-of-4"));
  expect_equal(store, filled(0, 2));
}

TEST(Loading, TakesTheNewestOfSeveralNumbersOfRanksAlsoBeforeOlderOnesOfItsOwn) {
  const TemporaryDirectory directory;
  save_all(directory, 4, {1, 100});
  save_all(directory, 3, {1, 100});
  save_all(directory, 2, {2, 7});
  for (const std::size_t ranks : {1U, 2U, 3U, 4U}) {
    SCOPED_TRACE(ranks);
    ResidualStore store(0, ranks);
    const auto loaded = load_residuals(store, "dp", directory.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(*loaded, (SaveMoment{2, 7}));
  }
}

TEST(Loading, OfFilesThatWereSavedAtDifferentMomentsIsRefused) {
  for (const SaveMoment other : {SaveMoment{11, 23}, SaveMoment{12, 22}}) {
    const TemporaryDirectory directory;
    save_all(directory, 3);
    ASSERT_TRUE(save_residuals(filled(1, 3), "dp", directory.path(), other).ok());
    for (const auto& [rank, ranks] : {std::pair<std::size_t, std::size_t>{0, 3}, {1, 3}, {2, 3}, {0, 2}}) {
      ResidualStore store(rank, ranks);
      fill(store, "kept", 3, ReduceOp::kSum);
      const Status status = load_residuals(store, "dp", directory.path()).status();
      EXPECT_EQ(status.code(), Code::kDataError);
      EXPECT_THAT(status.message(), HasSubstr("rank-1-of-3"));
      EXPECT_THAT(status.message(), HasSubstr("different moments"));
      EXPECT_EQ(store.entries().count("kept"), 1U);
    }
  }
}

TEST(Loading, WhereEachRankSeesOnlyItsOwnFileTakesThat) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(save_residuals(filled(2, 4), "dp", directory.path(), kMoment).ok());
  ResidualStore store(2, 4);
  ASSERT_TRUE(load_residuals(store, "dp", directory.path()).ok());
  expect_equal(store, filled(2, 4));
}

TEST(Resharding, OfTagsThatNotAllOldRanksHaveWithOneShapeIsRefused) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  ResidualStore other(1, 2);
  fill(other, "weight", 1004, ReduceOp::kAvg);
  ASSERT_TRUE(save_residuals(other, "dp", directory.path(), kMoment).ok());
  ResidualStore store = filled(0, 3);
  const Status status = load_residuals(store, "dp", directory.path()).status();
  EXPECT_EQ(status.code(), Code::kDataError);
  EXPECT_THAT(status.message(), HasSubstr("weight"));
  expect_equal(store, filled(0, 3));
}

TEST(Loading, FromNowhereIsAnErrorThatNamesTheDirectory) {
  ResidualStore store = filled(0, 2);
  for (const char* nowhere : {"/no/such/directory", "/dev/null", ""}) {
    const Status status = load_residuals(store, "dp", nowhere).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(nowhere));
  }
  const TemporaryDirectory empty;
  const Status status = load_residuals(store, "dp", empty.path()).status();
  EXPECT_EQ(status.code(), Code::kDataError);
  EXPECT_THAT(status.message(), HasSubstr("'dp'"));
  expect_equal(store, filled(0, 2));
}

TEST(Loading, TakesOnlyFilesOfTheCommunicatorsName) {
  const TemporaryDirectory directory;
  save_all(directory, 2);
  for (const char* other : {"d", "dp.rank-0-of-2", "tp"}) {
    ResidualStore store(0, 2);
    EXPECT_FALSE(load_residuals(store, other, directory.path()).ok()) << other;
  }
  // Files that are none of ours are passed by.
  for (const char* other :
       {"dp.rank-0-of-3.residuals.123.tmp", "dp.rank-0-of-x.residuals", "dp.rank-", "README"}) {
    write_bytes(directory.path() + "/" + other, "text");
  }
  ResidualStore store(0, 2);
  const Status status = load_residuals(store, "dp", directory.path()).status();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Saving, UnderANameThatIsNoFileNameWorks) {
  const TemporaryDirectory directory;
  for (const std::string name : {"a/b", "../up", ".", "with space", "new\nline", "", "ünïcode"}) {
    ASSERT_TRUE(save_residuals(filled(0, 1), name, directory.path() + "/deep/er", kMoment).ok()) << name;
    ResidualStore store(0, 1);
    ASSERT_TRUE(load_residuals(store, name, directory.path() + "/deep/er").ok()) << name;
    expect_equal(store, filled(0, 1));
  }
  EXPECT_EQ(files_in(directory.path()), 1U);
}

TEST(Saving, UnderNamesThatLookAlikeKeepsThemApart) {
  const TemporaryDirectory directory;
  const std::vector<std::string> names{"dp/0", "dp_0",      "dp%2F0",
                                       "dp",   "dp.rank-0", "dp.rank-0-of-1.residuals"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    ResidualStore store(0, 1);
    fill(store, "t", i + 1, ReduceOp::kSum);
    ASSERT_TRUE(save_residuals(store, names[i], directory.path(), kMoment).ok()) << names[i];
  }
  EXPECT_EQ(files_in(directory.path()), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    ResidualStore store(0, 1);
    const Status status = load_residuals(store, names[i], directory.path()).status();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(store.entries().at("t").count, i + 1) << names[i];
  }
}

TEST(Saving, WritesOverWhatACrashHasLeft) {
  const TemporaryDirectory directory;
  write_bytes(directory.path() + "/dp.rank-0-of-1.residuals.tmp", "half a file");
  ASSERT_TRUE(save_residuals(filled(0, 1), "dp", directory.path(), kMoment).ok());
  EXPECT_EQ(files_in(directory.path()), 1U);
}

TEST(Saving, ResidualsThatAFailedCallHasSpoiltIsLeftOut) {
  const TemporaryDirectory directory;
  ResidualStore store = filled(0, 1);
  (*store.get("bias", 5, DataType::kBFloat16, ReduceOp::kSum))->in_call = true;
  ASSERT_TRUE(save_residuals(store, "dp", directory.path(), kMoment).ok());
  ResidualStore loaded(0, 1);
  ASSERT_TRUE(load_residuals(loaded, "dp", directory.path()).ok());
  EXPECT_EQ(loaded.entries().size(), 2U);
  EXPECT_EQ(loaded.entries().count("bias"), 0U);
}

/// Saving fails; the file that was there is as it was, and nothing else is there.
void expect_old_file_stays(const std::string& directory) {
  const std::string path = directory + "/dp.rank-0-of-1.residuals";
  const std::string before = read_bytes(path);
  ResidualStore large(0, 1);
  fill(large, "large", 1'000'000, ReduceOp::kSum);
  const Status status = save_residuals(large, "dp", directory, kMoment);
  EXPECT_EQ(status.code(), Code::kSystemError) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_EQ(files_in(directory), 1U) << "a temporary file is left";
  EXPECT_TRUE(read_bytes(path) == before) << "the old file has changed";
  ResidualStore loaded(0, 1);
  EXPECT_TRUE(load_residuals(loaded, "dp", directory).ok());
  expect_equal(loaded, filled(0, 1));
}

TEST(Saving, OnADiskThatIsFullLeavesTheOldFile) {
  if (::unshare(CLONE_NEWNS) != 0)
    GTEST_SKIP() << "no mount namespace: " << std::strerror(errno) << " (needs root)";
  const TemporaryDirectory directory;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "no tmpfs: " << std::strerror(errno);
  }
  ASSERT_TRUE(save_residuals(filled(0, 1), "dp", directory.path(), kMoment).ok());
  expect_old_file_stays(directory.path());
  ASSERT_EQ(::umount(directory.path().c_str()), 0);
}

TEST(Saving, AboveTheFileSizeLimitLeavesTheOldFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(save_residuals(filled(0, 1), "dp", directory.path(), kMoment).ok());
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  expect_old_file_stays(directory.path());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
}

TEST(Saving, WhereNoDirectoryCanBeIsAnErrorThatNamesIt) {
  for (const char* nowhere : {"/dev/null/x", "/proc/no/such"}) {
    const Status status = save_residuals(filled(0, 1), "dp", nowhere, kMoment);
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_THAT(status.message(), HasSubstr(nowhere));
  }
}

}  // namespace
}  // namespace onebit::collective
