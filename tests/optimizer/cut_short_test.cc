// What a save that was cut short leaves: files of several steps. A load finds the newest state that all ranks
// have saved, or says which rank saved which step; never does it mix two.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/training.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string name_of_file(int rank, int ranks) {
  return formatted("optimizer.rank-{}-of-{}.optimizer", rank, ranks);
}

/// As if `rank` had saved in `from` alone, and then was ended.
void take_file(const TemporaryDirectory& from, int rank, int ranks, const TemporaryDirectory& to) {
  const std::string name = "/" + name_of_file(rank, ranks);
  std::filesystem::copy_file(from.path() + name, to.path() + name,
                             std::filesystem::copy_options::overwrite_existing);
}

Status train_to(Worker& worker, int end, int data = 0) {
  while (worker->steps() < end) {
    ONEBIT_RETURN_IF_ERROR(worker.step(static_cast<int>(worker->steps()) + 1 + data));
  }
  return Status();
}

/// One job that saves in `early` after step 25 and in `late` after step 30.
void save_twice(const Options& options, int ranks, const TemporaryDirectory& early,
                const TemporaryDirectory& late) {
  ASSERT_TRUE(ok(run_local_ranks(ranks, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, kOddSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 25));
    ONEBIT_RETURN_IF_ERROR(worker->save(early.path()));
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 30));
    return worker->save(late.path());
  })));
}

struct Loads {
  std::vector<Status> said;
  std::vector<std::int64_t> steps;
};

/// What loading comes to on each rank; `step_of`: the step that a rank asks for.
Loads load(const Options& options, int ranks, const TemporaryDirectory& directory,
           const std::function<std::optional<std::int64_t>(int rank)>& step_of = {}) {
  Loads loads{std::vector<Status>(static_cast<std::size_t>(ranks)),
              std::vector<std::int64_t>(static_cast<std::size_t>(ranks))};
  EXPECT_TRUE(ok(run_local_ranks(ranks, "", [&](int number, Communicator& communicator) -> Status {
    const auto rank = static_cast<std::size_t>(number);
    Worker worker(options, kOddSizes, communicator);
    const auto before = worker.parameters;
    loads.said[rank] = worker->load(directory.path(), step_of ? step_of(number) : std::nullopt);
    loads.steps[rank] = worker->steps();
    EXPECT_EQ(loads.said[rank].ok(), !same_bits(before, worker.parameters));
    return train_to(worker, 33);
  })));
  return loads;
}

void expect_loaded(const Loads& loads, std::int64_t step) {
  for (std::size_t rank = 0; rank < loads.said.size(); ++rank) {
    EXPECT_TRUE(ok(loads.said[rank]));
    EXPECT_EQ(loads.steps[rank], step);
  }
}

void expect_refused(const Loads& loads, const std::string& steps) {
  for (const Status& status : loads.said) {
    EXPECT_EQ(status.code(), Code::kDataError);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(steps), HasSubstr("save to one of its own each time")));
  }
}

TEST(CutShort, OfTheSameRanksIsRefusedWithTheStepOfEachRank) {
  for (const Kind kind : kAllKinds) {
    for (const bool compat : {false, true}) {
      Options options = short_options(kind);
      options.deepspeed_compat = compat;
      if (compat && !options.compresses()) continue;
      const TemporaryDirectory early, late;
      save_twice(options, 3, early, late);
      take_file(late, 0, 3, early);
      take_file(late, 2, 3, early);
      expect_refused(load(options, 3, early), "of 3 ranks: step 25 of rank 1, step 30 of ranks 0 2");
      take_file(late, 1, 3, early);
      expect_loaded(load(options, 3, early), 30);
    }
  }
}

TEST(CutShort, AfterAStateOfAnotherNumberOfRanksGoesBackToThat) {
  const Options options = short_options(Kind::kOneBitLamb);
  const TemporaryDirectory directory, unused, late;
  save_twice(options, 3, directory, unused);
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, kOddSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(worker->load(directory.path()));
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 30));
    return worker->save(late.path());
  })));
  take_file(late, 0, 2, directory);
  expect_loaded(load(options, 2, directory), 25);
  take_file(late, 1, 2, directory);
  expect_loaded(load(options, 2, directory), 30);
}

TEST(CutShort, AtAStepThatARunHasComeToTwiceIsRefused) {
  const Options options = short_options(Kind::kOneBitAdam);
  const TemporaryDirectory start, first, second;
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, kOddSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 25));
    ONEBIT_RETURN_IF_ERROR(worker->save(start.path()));
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 30));
    ONEBIT_RETURN_IF_ERROR(worker->save(first.path()));
    ONEBIT_RETURN_IF_ERROR(communicator.barrier());
    ONEBIT_RETURN_IF_ERROR(worker->load(start.path()));
    ONEBIT_RETURN_IF_ERROR(train_to(worker, 30, 1000));  // of other data
    return worker->save(second.path());
  })));
  take_file(second, 0, 2, first);
  expect_refused(load(options, 2, first), "step 30 of rank 0, step 30 of another run of rank 1");
}

TEST(CutShort, OfTwoOptimizersOfOneCommunicatorIsRefused) {
  const Options options = short_options(Kind::kOneBitAdam);
  const TemporaryDirectory first, second;
  ASSERT_TRUE(ok(run_local_ranks(2, "", [&](int, Communicator& communicator) -> Status {
    for (const TemporaryDirectory* const directory : {&first, &second}) {
      Worker worker(options, kOddSizes, communicator);
      ONEBIT_RETURN_IF_ERROR(train_to(worker, 25, directory == &first ? 0 : 1000));
      ONEBIT_RETURN_IF_ERROR(worker->save(directory->path()));
    }
    return Status();
  })));
  take_file(second, 1, 2, first);
  expect_refused(load(options, 2, first), "step 25 of rank 0, step 25 of another run of rank 1");
}

TEST(StepThatIsAskedFor, IsTheOneThatIsLoaded) {
  const Options options = short_options(Kind::kZeroOneAdam);
  const TemporaryDirectory directory, later;
  save_twice(options, 3, directory, later);
  save_twice(options, 2, later, directory);  // 2 ranks at step 30 are the newest there
  const auto asked = [](std::int64_t step) { return [=](int) { return step; }; };
  expect_loaded(load(options, 3, directory), 30);
  expect_loaded(load(options, 3, directory, asked(25)), 25);
  expect_loaded(load(options, 2, directory, asked(25)), 25);
  expect_loaded(load(options, 3, directory, asked(30)), 30);
  const Loads loads = load(options, 3, directory, asked(24));
  expect_refused(loads, "of step 24");
  expect_refused(loads, "of 2 ranks: step 30 of ranks 0 1; of 3 ranks: step 25 of ranks 0 1 2");
}

TEST(StepThatIsAskedFor, IsTheSameOnAllRanksOrNothingIsLoaded) {
  const Options options = short_options(Kind::kOneBitLamb);
  const TemporaryDirectory directory, later;
  save_twice(options, 3, directory, later);
  save_twice(options, 2, later, directory);
  const Loads loads = load(options, 2, directory, [](int rank) { return 25 + 5 * rank; });
  for (const Status& status : loads.said) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("different moments"), HasSubstr("step 25 of 3 ranks"),
                                        HasSubstr("step 30 of 2 ranks")));
  }
}

TEST(WholeFiles, AreChosenByTheirStepWithinARunAndByTheirTimeBetweenRuns) {
  const Options options = short_options(Kind::kOneBitAdam);
  const TemporaryDirectory directory;
  const auto save_whole = [&](int at_rank, int step) {
    return ok(run_local_ranks(2, "", [&](int rank, Communicator& communicator) -> Status {
      Worker worker(options, kOddSizes, communicator);
      ONEBIT_RETURN_IF_ERROR(train_to(worker, step));
      return rank == at_rank ? worker->save_whole(directory.path()) : Status();
    }));
  };
  ASSERT_TRUE(save_whole(0, 31));
  ASSERT_TRUE(save_whole(1, 27));  // a later job
  expect_loaded(load(options, 2, directory), 27);
  expect_loaded(load(options, 2, directory, [](int) { return 31; }), 31);
}

}  // namespace
}  // namespace onebit::testing
