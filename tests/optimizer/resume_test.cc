// What is rarely in a state is saved, too: a resumed job goes on bit for bit.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "optimizer/training.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using collective::Communicator;

constexpr int kRanks = 2;
const std::vector<std::size_t> kSizes{100, 30};

using Prepare = std::function<Status(Worker&, int step)>;

/// Trains from step `from` + 1 to `to`; `prepare` comes after set_gradients.
Status train_on(Worker& worker, int from, int to, const Prepare& prepare) {
  for (int step = from + 1; step <= to; ++step) {
    worker.set_gradients(step);
    ONEBIT_RETURN_IF_ERROR(prepare(worker, step));
    ONEBIT_RETURN_IF_ERROR(worker.take());
  }
  return Status();
}

/// Two jobs, one of which is saved after step `at` and gone on with by a new optimizer, end with the same
/// bits.
void expect_the_same_end(const Options& options, int at, int end, const Prepare& prepare) {
  const TemporaryDirectory directory;
  std::vector<std::vector<float>> due(kRanks), got(kRanks);
  ASSERT_TRUE(ok(run_local_ranks(kRanks, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, kSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(train_on(worker, 0, at, prepare));
    ONEBIT_RETURN_IF_ERROR(worker->save(directory.path()));
    ONEBIT_RETURN_IF_ERROR(train_on(worker, at, end, prepare));
    due[static_cast<std::size_t>(rank)] = worker.parameters;
    return Status();
  })));
  ASSERT_TRUE(ok(run_local_ranks(kRanks, "", [&](int rank, Communicator& communicator) -> Status {
    Worker worker(options, kSizes, communicator);
    ONEBIT_RETURN_IF_ERROR(worker->load(directory.path()));
    ONEBIT_RETURN_IF_ERROR(train_on(worker, at, end, prepare));
    got[static_cast<std::size_t>(rank)] = worker.parameters;
    return Status();
  })));
  for (std::size_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(same_bits(due[rank], got[rank])) << rank;
}

Status nothing(Worker&, int) {
  return Status();
}

TEST(Resume, WithinTheLooksOfAnAutomaticFreezeFreezesInTheSameStep) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    Options options = short_options(kind);
    options.freeze_step = Options::kAutomatic;
    options.all.beta2 = 0.9;  // a look in every step, 10 steps apart
    for (const int at : {3, 12, 25}) expect_the_same_end(options, at, 80, nothing);
  }
}

TEST(Resume, KeepsElementsWithoutVarianceWhereTheyAre) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam, Kind::kZeroOneAdam}) {
    expect_the_same_end(short_options(kind), 40, 60, [](Worker& worker, int step) {
      if (step <= 45) worker.gradients[7] = 0;  // its first gradient comes after the restart
      return Status();
    });
  }
}

TEST(Resume, RemembersTheNormsThatAFactorByNormsRefersTo) {
  Options options = short_options(Kind::kOneBitLamb);
  options.freeze_step = 10;
  for (const int at : {9, 10, 19, 21, 39, 41, 50}) expect_the_same_end(options, at, 55, nothing);
}

TEST(Resume, GoesOnWithTheLearningRateThatWasSet) {
  for (const Kind kind : kAllKinds) {
    for (const int at : {10, 33, 42}) {
      expect_the_same_end(short_options(kind), at, 50, [](Worker& worker, int step) {
        // Set in some steps only; the one after the restart has what the step before had.
        return step % 10 == 1 ? worker->set_learning_rate(0, 0.01 / step) : Status();
      });
    }
  }
}

TEST(Resume, RemembersTheStepsThatWereSkippedAndWhatClippingHasSeen) {
  for (const Kind kind : kAllKinds) {
    Options options = short_options(kind);
    options.gradient_clipping = 0.05;
    expect_the_same_end(options, 33, 60, [](Worker& worker, int step) {
      if (step % 7 == 0) worker.gradients[3] = std::nanf("");
      return Status();
    });
  }
}

TEST(Resume, AfterAFreezeByHandStaysInTheCompressedStage) {
  for (const Kind kind : {Kind::kOneBitLamb, Kind::kOneBitAdam}) {
    expect_the_same_end(short_options(kind), 12, 40,
                        [](Worker& worker, int step) { return step == 9 ? worker->freeze() : Status(); });
  }
}

}  // namespace
}  // namespace onebit::testing
