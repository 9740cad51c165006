// Ranks that do not agree: on the call, on its arguments, on the settings. All of them get an error soon, and
// it says what to look at.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace onebit::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Outcome {
  onebitResult_t result = onebitSuccess;
  std::string message;
};

/// Every rank makes the communicator with `settings[rank]` and then `call`; what it came to, without a
/// judgement.
std::vector<Outcome> run(const std::vector<std::string>& settings,
                         const std::function<onebitResult_t(int, onebitComm_t)>& call,
                         const std::vector<std::string>& names = {}) {
  ::setenv("ONEBIT_SOCKET_IFNAME", "lo", 1);
  std::vector<Outcome> outcomes(settings.size());
  onebitUniqueId id;
  if (!succeeded(onebitGetUniqueId(&id))) return outcomes;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < settings.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::string all = loopback_settings() + settings[rank];
      const onebitConfig_t config{sizeof(onebitConfig_t), names.empty() ? "test" : names[rank].c_str(),
                                  all.c_str()};
      onebitComm_t comm = nullptr;
      const auto ranks = static_cast<int>(settings.size());
      outcomes[rank].result = onebitCommInitRankConfig(&comm, ranks, id, static_cast<int>(rank), &config);
      if (outcomes[rank].result == onebitSuccess) outcomes[rank].result = call(static_cast<int>(rank), comm);
      if (outcomes[rank].result != onebitSuccess) outcomes[rank].message = onebitGetLastError(nullptr);
      onebitCommDestroy(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// A call and the words by which its error must name it.
struct Call {
  std::string words;
  std::function<onebitResult_t(onebitComm_t)> make;
};

Call reduce(std::size_t count, onebitDataType_t type, onebitRedOp_t op, const std::string& tag,
            std::string words) {
  return {std::move(words), [=](onebitComm_t comm) {
            std::vector<double> buffer(count);
            return onebitAllReduce(buffer.data(), buffer.data(), count, type, op, tag.c_str(), comm, nullptr);
          }};
}
Call broadcast(std::size_t count, int root) {
  return {"broadcast of " + std::to_string(count), [=](onebitComm_t comm) {
            std::vector<std::uint8_t> buffer(count);
            return onebitBroadcast(buffer.data(), buffer.data(), count, onebitUint8, root, comm, nullptr);
          }};
}
Call gather(std::size_t count) {
  return {"allgather of " + std::to_string(count), [=](onebitComm_t comm) {
            std::vector<std::uint8_t> send(count);
            std::vector<std::uint8_t> all(count * 8);
            return onebitAllGather(send.data(), all.data(), count, onebitUint8, comm, nullptr);
          }};
}
Call barrier() {
  return {"barrier", [](onebitComm_t comm) { return onebitBarrier(comm); }};
}

/// The last rank makes `odd`, the others `usual`; a barrier follows, for calls that need not hear of their
/// peers.
void expect_found(const Call& usual, const Call& odd, int ranks) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks: " + usual.words + " against " + odd.words);
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = run(std::vector<std::string>(static_cast<std::size_t>(ranks), "ONEBIT_MIN_SIZE=0\n"),
                            [&](int rank, onebitComm_t comm) {
                              const auto result = (rank == ranks - 1 ? odd : usual).make(comm);
                              return result == onebitSuccess ? onebitBarrier(comm) : result;
                            });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12))
      << "not found before the timeout";
  int invalid = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_NE(outcome.result, onebitSuccess) << "rank " << rank;
    EXPECT_THAT(outcome.message, HasSubstr("rank ")) << "rank " << rank;
    EXPECT_THAT(outcome.message,
                AnyOf(HasSubstr((rank == ranks - 1 ? odd : usual).words), HasSubstr("barrier")))
        << "rank " << rank;
    invalid += outcome.result == onebitInvalidUsage ? 1 : 0;
  }
  EXPECT_GT(invalid, 0) << outcomes[0].message;
}

class Disagreement : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Disagreement, ::testing::Values(2, 3));

TEST_P(Disagreement, OnTheCountIsAnErrorOnAllRanks) {
  const auto floats = [](std::size_t count) {
    return reduce(count, onebitFloat32, onebitSum, "", "allreduce of " + std::to_string(count) + " x float");
  };
  expect_found(floats(1000), floats(1001), GetParam());
  expect_found(floats(1000), floats(1'000'000), GetParam());
  expect_found(floats(1'000'000), floats(1'000'001), GetParam());
  expect_found(floats(999'999), floats(2'000'000), GetParam());
}

TEST_P(Disagreement, OnTheCountOfACompressedCallIsAnErrorOnAllRanks) {
  const auto floats = [](std::size_t count) {
    return reduce(count, onebitFloat32, onebitSum, "g",
                  "1-bit allreduce of " + std::to_string(count) + " x float");
  };
  expect_found(floats(1000), floats(1001), GetParam());
  expect_found(floats(1'000'000), floats(1'000'001), GetParam());
  expect_found(floats(1000), floats(1'000'000), GetParam());
}

TEST_P(Disagreement, OnTypeOpTagOrCompressionIsAnErrorOnAllRanks) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{300'000}}) {
    const auto n = std::to_string(count);
    const auto plain = reduce(count, onebitFloat32, onebitSum, "", "allreduce of " + n + " x float sum");
    const auto tagged = reduce(count, onebitFloat32, onebitSum, "g", "tag 'g'");
    expect_found(plain, reduce(count, onebitInt32, onebitSum, "", n + " x int32 sum"), GetParam());
    expect_found(plain, reduce(count, onebitFloat64, onebitSum, "", n + " x double sum"), GetParam());
    expect_found(plain, reduce(count, onebitFloat32, onebitAvg, "", n + " x float avg"), GetParam());
    expect_found(plain, tagged, GetParam());
    expect_found(tagged, reduce(count, onebitFloat32, onebitSum, "h", "tag 'h'"), GetParam());
    expect_found(tagged, reduce(count, onebitBfloat16, onebitSum, "g", "x bfloat16"), GetParam());
    expect_found(tagged, reduce(count, onebitFloat32, onebitAvg, "g", "float avg"), GetParam());
  }
}

TEST_P(Disagreement, OnTheKindOfCallIsAnErrorOnAllRanks) {
  const auto plain = reduce(1000, onebitFloat32, onebitSum, "", "allreduce of 1000 x float");
  for (const Call& other : {broadcast(4000, 0), gather(4000), barrier()}) {
    expect_found(plain, other, GetParam());
    expect_found(other, plain, GetParam());
  }
  expect_found(broadcast(4000, 0), gather(4000), GetParam());
  expect_found(barrier(), gather(1), GetParam());
}

TEST_P(Disagreement, OnTheArgumentsOfBroadcastAndAllGatherIsAnErrorOnAllRanks) {
  expect_found(broadcast(1000, 0), broadcast(1001, 0), GetParam());
  expect_found(gather(1000), gather(1001), GetParam());
}

TEST_P(Disagreement, OnTheRootOfABroadcastIsAnErrorOnAllRanks) {
  expect_found(broadcast(1000, 0), broadcast(1000, 1), GetParam());
}

TEST_P(Disagreement, WhetherThereIsAnythingToReduceIsAnErrorOnAllRanks) {
  const auto some = reduce(1000, onebitFloat32, onebitSum, "", "allreduce of 1000 x float");
  const auto none = reduce(0, onebitFloat32, onebitSum, "", "allreduce of 0 x float");
  expect_found(some, none, GetParam());
  expect_found(none, some, GetParam());
}

TEST(DisagreementAfterwards, EveryLaterCallGivesTheFailureAtOnce) {
  run({"", ""}, [&](int rank, onebitComm_t comm) {
    std::vector<float> buffer(2000);
    const auto first = onebitAllReduce(buffer.data(), buffer.data(), static_cast<std::size_t>(1000 + rank),
                                       onebitFloat32, onebitSum, nullptr, comm, nullptr);
    EXPECT_NE(first, onebitSuccess);
    const std::string words = onebitGetLastError(nullptr);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(onebitBarrier(comm), first);
    EXPECT_EQ(onebitGetLastError(nullptr), words);
    EXPECT_EQ(onebitAllReduce(buffer.data(), buffer.data(), 10, onebitFloat32, onebitSum, "g", comm, nullptr),
              first);
    EXPECT_EQ(onebitResidualLoad(comm, "/tmp"), first);
    onebitResult_t asynchronous = onebitSuccess;
    EXPECT_TRUE(succeeded(onebitCommGetAsyncError(comm, &asynchronous)));
    EXPECT_EQ(asynchronous, first);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    return first;
  });
}

TEST(DifferingSettings, AreNamedWithBothValuesOnAllRanks) {
  struct Difference {
    std::string name, usual, odd;
  };
  for (const Difference& d :
       {Difference{"ONEBIT_BLOCK", "2048", "4096"}, Difference{"ONEBIT_BLOCK", "whole", "256"},
        Difference{"ONEBIT_SCALE", "rms", "mean"}, Difference{"ONEBIT_COMPRESS", "all", "!tag=bias;all"},
        Difference{"ONEBIT_MIN_SIZE", "65536", "65537"}, Difference{"ONEBIT_CHUNK", "0", "4096"},
        Difference{"ONEBIT_PIPELINE_DEPTH", "4", "8"}}) {
    SCOPED_TRACE(d.name);
    const std::string usual = d.name + "=" + d.usual;
    const std::string odd = d.name + "=" + d.odd;
    for (const Outcome& outcome : run({usual, odd, usual}, [](int, onebitComm_t) { return onebitSuccess; })) {
      EXPECT_EQ(outcome.result, onebitInvalidUsage);
      EXPECT_THAT(outcome.message, HasSubstr(usual));
      EXPECT_THAT(outcome.message, HasSubstr(odd));
      EXPECT_THAT(outcome.message, HasSubstr("rank 1"));
    }
  }
}

TEST(DifferingSettings, OfTheCommunicatorsNameAreNamedToo) {
  for (const Outcome& outcome :
       run({"", ""}, [](int, onebitComm_t) { return onebitSuccess; }, {"actor", "critic"})) {
    EXPECT_EQ(outcome.result, onebitInvalidUsage);
    EXPECT_THAT(outcome.message, HasSubstr("actor"));
    EXPECT_THAT(outcome.message, HasSubstr("critic"));
  }
}

TEST(DifferingSettings, ThatAreARanksOwnAffairDoNotMatter) {
  const auto outcomes =
      run({"ONEBIT_THREADS=1\nONEBIT_CODEC_IMPL=scalar", "ONEBIT_THREADS=3\nONEBIT_TCP_SNDBUF=1M"},
          [](int, onebitComm_t comm) {
            std::vector<float> x(300'000, 1.0F);
            const auto result =
                onebitAllReduce(x.data(), x.data(), x.size(), onebitFloat32, onebitSum, "g", comm, nullptr);
            EXPECT_EQ(x.front(), 2.0F);
            return result;
          });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.result, onebitSuccess) << outcome.message;
}

TEST(SettingsThatDoNotParse, AreNamedWithTheValueAndWhatIsAccepted) {
  struct Bad {
    std::string line;
    std::vector<std::string> words;
  };
  for (const Bad& bad : {Bad{"ONEBIT_BLOCK=1000", {"ONEBIT_BLOCK", "1000", "power of two"}},
                         Bad{"ONEBIT_SCALE=max", {"ONEBIT_SCALE", "max", "rms", "mean"}},
                         Bad{"ONEBIT_TIMEOUT=soon", {"ONEBIT_TIMEOUT", "soon", "seconds"}},
                         Bad{"ONEBIT_TIMEOUT=-1", {"ONEBIT_TIMEOUT", "-1", "seconds"}},
                         Bad{"ONEBIT_MIN_SIZE=64KB", {"ONEBIT_MIN_SIZE", "64KB", "K, M or G"}},
                         Bad{"ONEBIT_PIPELINE_DEPTH=0", {"ONEBIT_PIPELINE_DEPTH", "from 1 to 64"}},
                         Bad{"ONEBIT_COMPRESS=size>>5", {"ONEBIT_COMPRESS", "size>>5", "size>=BYTES"}},
                         Bad{"ONEBIT_CODEC_IMPL=abacus", {"ONEBIT_CODEC_IMPL", "abacus", "scalar"}},
                         Bad{"ONEBIT_PORT_RANGE=9-1", {"ONEBIT_PORT_RANGE", "9-1", "20000-20100"}},
                         Bad{"ONEBIT_NO_SUCH_THING=1", {"ONEBIT_NO_SUCH_THING"}}}) {
    SCOPED_TRACE(bad.line);
    const auto outcomes = run({bad.line}, [](int, onebitComm_t) { return onebitSuccess; });
    EXPECT_EQ(outcomes[0].result, onebitInvalidArgument) << outcomes[0].message;
    for (const std::string& word : bad.words) EXPECT_THAT(outcomes[0].message, HasSubstr(word));
  }
}

TEST(SettingsThatDoNotParse, OfOneRankDoNotKeepTheOthersWaitingBeyondTheirDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = run({"ONEBIT_INIT_TIMEOUT=2s", "ONEBIT_INIT_TIMEOUT=2s\nONEBIT_SCALE=max"},
                            [](int, onebitComm_t) { return onebitSuccess; });
  EXPECT_EQ(outcomes[0].result, onebitTimeout) << outcomes[0].message;
  EXPECT_THAT(outcomes[0].message, HasSubstr("1"));
  EXPECT_EQ(outcomes[1].result, onebitInvalidArgument) << outcomes[1].message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

}  // namespace
}  // namespace onebit::testing
