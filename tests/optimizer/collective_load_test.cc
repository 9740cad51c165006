// Loading a state: all ranks load what was saved at one moment, or none loads anything and each says why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "optimizer/training.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kSaved = 25;

std::string file_of(const TemporaryDirectory& directory, int rank, int ranks = kRanks) {
  return formatted("{}/optimizer.rank-{}-of-{}.optimizer", directory.path(), rank, ranks);
}

void train_and_save(const TemporaryDirectory& directory, const Options& options, int steps,
                    int ranks = kRanks) {
  ASSERT_TRUE(ok(run_local_ranks(ranks, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, kOddSizes, communicator);
    for (int step = 1; step <= steps; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
    return worker->save(directory.path());
  })));
}

/// Ranks see a directory each; `spoil` does something to rank 1's. Returns what each rank's load says, after
/// checks that nothing has changed on any where it is an error, and that all can go on.
std::vector<Status> load_apart(const Options& options,
                               const std::function<void(const TemporaryDirectory&)>& spoil) {
  std::vector<TemporaryDirectory> seen(kRanks);
  train_and_save(seen[0], options, kSaved);
  for (int rank = 1; rank < kRanks; ++rank) {
    std::filesystem::copy(seen[0].path(), seen[static_cast<std::size_t>(rank)].path(),
                          std::filesystem::copy_options::recursive);
  }
  spoil(seen[1]);
  std::vector<Status> said(kRanks);
  std::vector<std::vector<float>> ends(kRanks);
  EXPECT_TRUE(ok(run_local_ranks(kRanks, "", [&](int number, Communicator& communicator) -> Status {
    const auto rank = static_cast<std::size_t>(number);
    Worker worker(options, kOddSizes, communicator);
    for (int step = 1; step <= 3; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
    const auto before = worker.parameters;
    const auto m = worker.state(4, "exp_avg");
    said[rank] = worker->load(seen[rank].path());
    if (!said[rank].ok()) {
      EXPECT_TRUE(same_bits(before, worker.parameters));
      EXPECT_TRUE(same_bits(m, worker.state(4, "exp_avg")));
      EXPECT_EQ(worker->steps(), 3);
    }
    for (int step = 4; step <= 6; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
    ends[rank] = worker.parameters;
    return Status();
  })));
  for (const auto& end : ends) EXPECT_TRUE(same_bits(end, ends[0]));
  return said;
}

/// All fail: rank 1 with `own` in its words, the others with its number.
void expect_none_loaded(const std::vector<Status>& said, const std::string& own) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    ASSERT_FALSE(said[rank].ok()) << rank;
    EXPECT_THAT(said[rank].message(), HasSubstr(rank == 1 ? own : "rank 1 cannot load the state"));
  }
}

TEST(CollectiveLoad, OfDirectoriesThatAreAllWholeLoadsOnAllRanks) {
  for (const Status& status : load_apart(short_options(Kind::kOneBitLamb), [](const auto&) {})) {
    EXPECT_TRUE(ok(status));
  }
}

TEST(CollectiveLoad, WhereOneRankLacksAFileLoadsNowhere) {
  for (const Kind kind : kAllKinds) {
    expect_none_loaded(load_apart(short_options(kind),
                                  [](const TemporaryDirectory& directory) {
                                    std::filesystem::remove(file_of(directory, 2));
                                  }),
                       "no file of rank 2, step 25 of ranks 0 1");
  }
}

TEST(CollectiveLoad, WhereOneRankHasNoDirectoryLoadsNowhere) {
  expect_none_loaded(
      load_apart(short_options(Kind::kOneBitAdam),
                 [](const TemporaryDirectory& directory) { std::filesystem::remove_all(directory.path()); }),
      "No such file");
}

TEST(CollectiveLoad, WhereOneRanksFileIsDamagedLoadsNowhere) {
  expect_none_loaded(load_apart(short_options(Kind::kOneBitLamb),
                                [](const TemporaryDirectory& directory) {
                                  std::string bytes = read_bytes(file_of(directory, 0));
                                  bytes[bytes.size() / 4] ^= 1;  // in the arrays that all ranks read
                                  write_bytes(file_of(directory, 0), bytes);
                                }),
                     "rank-0-of-3");
}

TEST(CollectiveLoad, WhereOneRankSeesAnotherMomentLoadsNowhere) {
  const Options options = short_options(Kind::kOneBitAdam);
  for (const int ranks : {3, 2}) {
    const auto said = load_apart(options, [&](const TemporaryDirectory& directory) {
      train_and_save(directory, options, kSaved + 1, ranks);
    });
    for (const Status& status : said) {
      EXPECT_EQ(status.code(), Code::kDataError);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("different moments"), HasSubstr("step 25 of 3 ranks"),
                                          HasSubstr(formatted("step 26 of {} ranks", ranks))));
    }
  }
}

TEST(CollectiveLoad, OnACommunicatorThatHasFailedSaysSo) {
  const TemporaryDirectory directory;
  train_and_save(directory, short_options(Kind::kAdam), 2, 1);
  auto communicator = lone_communicator();
  ASSERT_TRUE(ok(communicator.status()));
  Worker worker(short_options(Kind::kAdam), kOddSizes, **communicator);
  (*communicator)->abort();
  EXPECT_EQ(worker->load(directory.path()).code(), Code::kAborted);
}

}  // namespace
}  // namespace onebit::testing
