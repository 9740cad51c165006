// Checkpoints: the same ranks go on bit for bit, other numbers of ranks go on; nothing damaged, half-written
// or of another optimizer is taken, and whatever fails leaves things as they were.

#include "optimizer/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "optimizer/training.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using collective::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_of(const TemporaryDirectory& directory, int rank, int ranks) {
  return formatted("{}/optimizer.rank-{}-of-{}.optimizer", directory.path(), rank, ranks);
}

/// Trains and saves after each of `steps`, which ascend, in the directory of its place.
void train_and_save_at(const std::vector<int>& steps, std::span<const TemporaryDirectory> directories,
                       const Options& options, int ranks, const std::vector<std::size_t>& sizes = kOddSizes) {
  ASSERT_TRUE(ok(run_local_ranks(ranks, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, sizes, communicator);
    int step = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      while (step < steps[i]) ONEBIT_RETURN_IF_ERROR(worker.step(++step));
      ONEBIT_RETURN_IF_ERROR(worker->save(directories[i].path()));
    }
    return Status();
  })));
}

/// Trains to `steps` and saves.
void train_and_save(const TemporaryDirectory& directory, const Options& options, int ranks, int steps,
                    const std::vector<std::size_t>& sizes = kOddSizes) {
  train_and_save_at({steps}, {&directory, 1}, options, ranks, sizes);
}

/// Loads on one of `ranks` ranks, without others.
Status load_one(const TemporaryDirectory& directory, const Options& options,
                std::vector<float>* parameters = nullptr, const std::vector<std::size_t>& sizes = kOddSizes) {
  Status status;
  EXPECT_TRUE(ok(run_local_ranks(1, "", [&](int, Communicator& communicator) -> Status {
    Worker worker(options, sizes, communicator);
    const auto before = worker.parameters;
    status = worker->load(directory.path());
    EXPECT_TRUE(status.ok() || same_bits(before, worker.parameters));
    if (parameters != nullptr) *parameters = worker.parameters;
    return Status();
  })));
  return status;
}

TEST(Checkpoint, LetsTheSameRanksGoOnBitForBit) {
  constexpr int kEnd = 70;
  for (const Kind kind : kAllKinds) {
    for (const bool original : {false, true}) {
      if (original && kind < Kind::kOneBitLamb) continue;
      for (const int ranks : {1, 3, 4}) {
        Options options = short_options(kind);
        options.deepspeed_compat = original;
        options.gradient_clipping = 1;
        const auto due = train(ranks, options, kEnd);
        const std::vector<int> moments{0, 1, 7, 19, 20, 21, 31, 43, 53};
        const std::vector<TemporaryDirectory> directories(moments.size());
        train_and_save_at(moments, directories, options, ranks);
        for (std::size_t i = 0; i < moments.size(); ++i) {
          const int at = moments[i];
          SCOPED_TRACE(formatted("{}, compat {}, {} ranks, step {}", name_of(kind), original, ranks, at));
          std::vector<std::vector<float>> ends(static_cast<std::size_t>(ranks));
          ASSERT_TRUE(ok(run_local_ranks(ranks, "", [&](int rank, Communicator& communicator) -> Status {
            Worker worker(options, kOddSizes, communicator);
            std::fill(worker.parameters.begin(), worker.parameters.end(), 99.0F);
            ONEBIT_RETURN_IF_ERROR(worker->load(directories[i].path()));
            EXPECT_EQ(worker->steps(), at);
            for (int step = at + 1; step <= kEnd; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
            ends[static_cast<std::size_t>(rank)] = worker.parameters;
            return Status();
          })));
          for (std::size_t rank = 0; rank < ends.size(); ++rank)
            EXPECT_TRUE(same_bits(ends[rank], due[rank]));
        }
      }
    }
  }
}

TEST(Checkpoint, OfOneRankThatIsWholeStandsForAll) {
  for (const Kind kind : kAllKinds) {
    SCOPED_TRACE(name_of(kind));
    const Options options = short_options(kind);
    constexpr int kSteps = 44;
    const TemporaryDirectory directory, lonely;
    std::vector<float> due;
    ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int rank, Communicator& communicator) -> Status {
      Worker worker(options, kOddSizes, communicator);
      for (int step = 1; step <= kSteps; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
      if (rank == 1) due = worker.parameters;
      ONEBIT_RETURN_IF_ERROR(worker->save_whole(directory.path()));
      return rank == 1 ? worker->save_whole(lonely.path()) : Status();
    })));
    std::vector<float> found;
    EXPECT_TRUE(ok(load_one(lonely, options, &found)));
    EXPECT_TRUE(same_bits(found, due));
    // Its own file is all that a rank needs to go on bit for bit.
    const auto expected = train(3, options, 60);
    ASSERT_TRUE(ok(run_local_ranks(3, "", [&](int rank, Communicator& communicator) -> Status {
      const TemporaryDirectory own;
      std::filesystem::copy_file(file_of(directory, rank, 3), file_of(own, rank, 3));
      Worker worker(options, kOddSizes, communicator);
      ONEBIT_RETURN_IF_ERROR(worker->load(own.path()));
      for (int step = kSteps + 1; step <= 60; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
      EXPECT_TRUE(same_bits(worker.parameters, expected[static_cast<std::size_t>(rank)]));
      return Status();
    })));
  }
}

TEST(Checkpoint, LetsAnotherNumberOfRanksGoOn) {
  for (const Kind kind : kAllKinds) {
    for (const bool original : {false, true}) {
      if (original && kind < Kind::kOneBitLamb) continue;
      for (const auto& [from, to] : {std::pair{4, 1}, {1, 3}, {2, 5}, {8, 3}, {3, 7}}) {
        Options options = short_options(kind);
        options.deepspeed_compat = original;
        const std::vector<int> moments{10, 25, 50, 53};
        const std::vector<TemporaryDirectory> directories(moments.size());
        train_and_save_at(moments, directories, options, from);
        for (std::size_t i = 0; i < moments.size(); ++i) {
          const int at = moments[i];
          SCOPED_TRACE(
              formatted("{}, compat {}, {} to {} ranks, step {}", name_of(kind), original, from, to, at));
          std::mutex mutex;
          std::vector<float> loaded, common;
          ASSERT_TRUE(ok(run_local_ranks(to, "", [&](int, Communicator& communicator) -> Status {
            Worker worker(options, kOddSizes, communicator);
            ONEBIT_RETURN_IF_ERROR(worker->load(directories[i].path()));
            {
              const std::lock_guard lock(mutex);
              if (loaded.empty()) loaded = worker.parameters;
              EXPECT_TRUE(same_bits(loaded, worker.parameters));
            }
            for (int step = at + 1; step <= at + 4; ++step) ONEBIT_RETURN_IF_ERROR(worker.step(step));
            const std::lock_guard lock(mutex);
            if (!worker->in_common()) return Status();
            if (common.empty()) common = worker.parameters;
            EXPECT_TRUE(same_bits(common, worker.parameters));
            return Status();
          })));
          for (std::size_t element = 0; element < loaded.size() && !common.empty(); ++element) {
            ASSERT_LT(std::abs(loaded[element] - common[element]), 1) << element;
          }
        }
      }
    }
  }
}

TEST(Checkpoint, HoldsWhatAllRanksShareOnce) {
  const TemporaryDirectory one, four;
  const std::vector<std::size_t> sizes{100'000};
  train_and_save(one, short_options(Kind::kAdam), 1, 1, sizes);
  train_and_save(four, short_options(Kind::kAdam), 4, 1, sizes);
  const auto whole = std::filesystem::file_size(file_of(one, 0, 1));
  const auto shard = std::filesystem::file_size(file_of(four, 0, 4));
  EXPECT_LT(shard, whole / 4 + 300);
}

TEST(Checkpoint, OfMastersKeepsWhatThe16BitsCannot) {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const TemporaryDirectory directory;
    Options options = short_options(Kind::kAdam);
    options.all.lr = 1e-5;  // too little to show in 8 bits
    std::vector<std::uint16_t> narrow(64, type == DataType::kFloat16 ? 0x3c00 : 0x3f80);
    std::vector<std::uint16_t> after(64);
    const auto change = [&](std::vector<TensorSpec>& tensors) {
      tensors[0].parameters = narrow.data();
      tensors[0].type = type;
    };
    ASSERT_TRUE(ok(run_local_ranks(1, "", [&](int, Communicator& communicator) -> Status {
      Worker worker(options, {64}, communicator, change);
      std::fill(worker.gradients.begin(), worker.gradients.end(), 1.0F);
      for (int step = 1; step <= 100; ++step) ONEBIT_RETURN_IF_ERROR(worker.take());
      ONEBIT_RETURN_IF_ERROR(worker->save(directory.path()));
      for (int step = 1; step <= 400; ++step) ONEBIT_RETURN_IF_ERROR(worker.take());
      after = narrow;
      EXPECT_LT(narrow[0], type == DataType::kFloat16 ? 0x3c00 : 0x3f80);
      std::fill(narrow.begin(), narrow.end(), 0);
      Worker resumed(options, {64}, communicator, change);
      std::fill(resumed.gradients.begin(), resumed.gradients.end(), 1.0F);
      ONEBIT_RETURN_IF_ERROR(resumed->load(directory.path()));
      for (int step = 1; step <= 400; ++step) ONEBIT_RETURN_IF_ERROR(resumed.take());
      EXPECT_EQ(narrow, after);
      return Status();
    })));
  }
}

TEST(Damage, OfAnyByteIsRefusedAndChangesNothing) {
  const TemporaryDirectory directory;
  const std::vector<std::size_t> sizes{5, 9};
  const Options options = short_options(Kind::kOneBitLamb);
  train_and_save(directory, options, 2, 25, sizes);
  for (const int rank : {0, 1}) {
    const std::string path = file_of(directory, rank, 2);
    const std::string whole = read_bytes(path);
    for (std::size_t i = 0; i < whole.size(); i += 1 + i / 200) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      write_bytes(path, damaged);
      const Status status = load_one(directory, options, nullptr, sizes);
      ASSERT_FALSE(status.ok()) << "byte " << i;
      EXPECT_EQ(status.code(), Code::kDataError);
      EXPECT_THAT(status.message(), HasSubstr(path));
    }
    for (std::size_t length = 0; length < whole.size(); length += 1 + length / 50) {
      write_bytes(path, whole.substr(0, length));
      ASSERT_FALSE(load_one(directory, options, nullptr, sizes).ok()) << "truncated to " << length;
    }
    write_bytes(path, whole + "x");
    EXPECT_THAT(load_one(directory, options, nullptr, sizes).message(), HasSubstr("1 bytes follow"));
    write_bytes(path, whole);
    EXPECT_TRUE(ok(load_one(directory, options, nullptr, sizes)));
  }
}

TEST(State, OfAnotherOptimizerIsRefused) {
  const TemporaryDirectory directory;
  train_and_save(directory, short_options(Kind::kOneBitLamb), 1, 3);
  EXPECT_THAT(load_one(directory, short_options(Kind::kOneBitAdam)).message(),
              HasSubstr("the state of OneBitLamb, not of OneBitAdam"));
  Options original = short_options(Kind::kOneBitLamb);
  original.deepspeed_compat = true;
  EXPECT_THAT(load_one(directory, original).message(), HasSubstr("not of OneBitLamb in deepspeed_compat"));
  Options papers = short_options(Kind::kOneBitLamb);
  papers.norm_factor = false;
  EXPECT_THAT(load_one(directory, papers).message(), HasSubstr("its norm_factor"));
  Options other = short_options(Kind::kOneBitLamb);
  other.name = "critic";
  EXPECT_THAT(load_one(directory, other).message(), HasSubstr("no state of an optimizer 'critic'"));
}

TEST(State, OfOtherShapesNamesTheTensor) {
  const TemporaryDirectory directory;
  const Options options = short_options(Kind::kAdam);
  train_and_save(directory, options, 1, 3, {10, 20});
  EXPECT_THAT(load_one(directory, options, nullptr, {10, 21}).message(),
              HasSubstr("'layer1' of 20 elements where this optimizer has 'layer1' of 21"));
  EXPECT_THAT(load_one(directory, options, nullptr, {10}).message(), HasSubstr("(none)"));
  EXPECT_THAT(load_one(directory, options, nullptr, {10, 20, 1}).message(), HasSubstr("(none)"));
}

TEST(State, IsFoundBesideFilesOfMoreRanksThanThereCanBe) {
  const TemporaryDirectory directory;
  const Options options = short_options(Kind::kOneBitAdam);
  train_and_save(directory, options, 1, 3);
  std::ofstream(file_of(directory, 0, 1000000000)) << "rubbish";
  EXPECT_TRUE(load_one(directory, options).ok());
}

TEST(State, ThatIsMissingOrOfSeveralMomentsIsRefused) {
  const TemporaryDirectory directory, later;
  const Options options = short_options(Kind::kOneBitAdam);
  EXPECT_THAT(load_one(directory, options).message(), HasSubstr("no state"));
  train_and_save(directory, options, 2, 3);
  train_and_save(later, options, 2, 4);
  std::filesystem::remove(file_of(directory, 1, 2));
  EXPECT_THAT(load_one(directory, options).message(),
              HasSubstr("of 2 ranks: no file of rank 1, step 3 of rank 0"));
  std::filesystem::copy_file(file_of(later, 1, 2), file_of(directory, 1, 2));
  EXPECT_THAT(load_one(directory, options).message(),
              AllOf(HasSubstr("step 3 of rank 0, step 4 of another run of rank 1"),
                    HasSubstr("save to one of its own each time")));
  train_and_save(later, options, 2, 3);
  std::filesystem::remove(file_of(directory, 1, 2));
  std::filesystem::copy_file(file_of(later, 1, 2), file_of(directory, 1, 2));
  EXPECT_THAT(load_one(directory, options).message(),
              HasSubstr("step 3 of rank 0, step 3 of another run of rank 1"));
  std::filesystem::remove(file_of(directory, 1, 2));
  std::filesystem::copy_file(file_of(directory, 0, 2), file_of(directory, 1, 2));
  EXPECT_THAT(load_one(directory, options).message(), HasSubstr("rank 0 of 2, not rank 1"));
}

TEST(Saving, OnADiskThatIsFullLeavesTheOldFile) {
  const TemporaryDirectory directory;
  // A namespace of its own, in a thread of its own, keeps the mount away from everybody else.
  std::thread([&] {
    if (::unshare(CLONE_NEWNS | CLONE_FS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=512k") != 0) {
      GTEST_SKIP() << "no mount namespace: " << std::strerror(errno) << " (needs root)";
    }
    const std::vector<std::size_t> sizes{30'000};
    auto communicator = lone_communicator();
    ASSERT_TRUE(ok(communicator.status()));
    Worker worker(short_options(Kind::kAdam), sizes, **communicator);
    EXPECT_TRUE(ok(worker.step(1)));
    EXPECT_TRUE(ok(worker->save(directory.path())));
    const std::string before = read_bytes(file_of(directory, 0, 1));
    EXPECT_TRUE(ok(worker.step(2)));
    const Status status = worker->save(directory.path());
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_THAT(status.message(), HasSubstr("No space left"));
    EXPECT_EQ(read_bytes(file_of(directory, 0, 1)), before);
    EXPECT_EQ(files_in(directory.path()), 1U);
    EXPECT_TRUE(ok(worker->load(directory.path())));
    EXPECT_EQ(worker->steps(), 1);
    ::umount2(directory.path().c_str(), MNT_DETACH);
  }).join();
}

}  // namespace
}  // namespace onebit::testing
