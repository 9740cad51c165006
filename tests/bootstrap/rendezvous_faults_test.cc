// The rendezvous under wrong ranks, missing ranks, dying ranks, lying ranks and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/joining.h"
#include "bootstrap/member.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/stream.h"
#include "ranks.h"

namespace onebit::bootstrap {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::string_literals;
using namespace std::string_view_literals;

TEST(WrongRanks, AnotherReleaseOfTheLibraryIsRefusedWithBothVersions) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(2, port, plenty());
  stranger(port).reset();  // waits for the port
  Member member = this_member(1, 2, "", std::chrono::seconds(60));
  const std::string ours = member.version;
  member.version = "9.9.9";
  bool final = false;
  const auto refused = try_join(loopback(port), SocketAddress(), public_key(), member, milliseconds(5000),
                                Deadline::after(std::chrono::seconds(20)), final);
  EXPECT_TRUE(final);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("onebit 9.9.9"), HasSubstr(ours)));
  EXPECT_TRUE(join_and_gather(launch_of(1, 2, port), plenty()).ok());
  EXPECT_TRUE(rank_zero.wait().ok());
}

TEST(WrongRanks, AnotherWorldSizeIsRefusedWithBothNumbers) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(2), [&](int rank) {
    return join_and_gather(launch_of(rank, rank == 0 ? 2 : 4, port), patience(milliseconds(2500)));
  });
  EXPECT_EQ(Code::kInvalidUsage, results[1].code());
  EXPECT_THAT(results[1].message(), AllOf(HasSubstr("the job has 4 ranks"), HasSubstr("rank 0 says 2")));
  EXPECT_THAT(results[0].message(), AllOf(HasSubstr("missing is rank 1"), HasSubstr("4 ranks")));
}

TEST(WrongRanks, NumbersOutsideTheJobAreRefusedBeforeAnythingIsSent) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  for (const auto& [rank, size] :
       std::vector<std::pair<int, int>>{{-1, 2}, {2, 2}, {0, 0}, {0, -3}, {0, 1 << 20}}) {
    EXPECT_EQ(Code::kInvalidArgument, Rendezvous::join(launch_of(rank, size, 1), plenty()).status().code());
    EXPECT_EQ(Code::kInvalidArgument, Rendezvous::join(*id, rank, size, plenty()).status().code());
  }
}

TEST(WrongRanks, ARankThatClaimsANumberOutsideTheJobIsRefused) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(2, port, plenty());
  stranger(port).reset();
  Member member = this_member(7, 2, "", std::chrono::seconds(60));
  bool final = false;
  const auto refused = try_join(loopback(port), SocketAddress(), public_key(), member, milliseconds(5000),
                                Deadline::after(std::chrono::seconds(20)), final);
  EXPECT_TRUE(final);
  EXPECT_THAT(refused.status().message(), HasSubstr("says that it is rank 7, but the job has 2 ranks"));
  EXPECT_TRUE(join_and_gather(launch_of(1, 2, port), plenty()).ok());
  EXPECT_TRUE(rank_zero.wait().ok());
}

TEST(WrongRanks, TwoWithOneNumberFailTheJobAtOnceAndAllAreTold) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  const auto results =
      run_ranks({0, 1, 2, 2}, [&](int rank) { return Rendezvous::join(*id, rank, 5, plenty()).status(); });
  for (const Status& status : results) {
    EXPECT_EQ(Code::kInvalidUsage, status.code()) << status.message();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("two processes claim to be rank 2"),
                                        HasSubstr(formatted("pid {}", ::getpid()))));
  }
}

TEST(WrongRanks, TwoRankZerosFailBoth) {
  const std::uint16_t port = free_port();
  const auto results =
      run_ranks({0, 0}, [&](int rank) { return join_and_gather(launch_of(rank, 3, port), plenty()); });
  for (const Status& status : results) {
    EXPECT_EQ(Code::kInvalidUsage, status.code()) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("two processes claim to be rank 0"));
  }
}

TEST(MissingRanks, AreNamedToAllThatWait) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks({0, 1, 3, 7}, [&](int rank) {
    return join_and_gather(launch_of(rank, 8, port), patience(milliseconds(rank == 3 ? 800 : 20'000)));
  });
  for (const Status& status : results) {
    EXPECT_EQ(Code::kTimeout, status.code());
    EXPECT_THAT(status.message(), AllOf(HasSubstr("4 of 8 ranks"), HasSubstr("missing are ranks 2, 4-6"),
                                        HasSubstr("here are 0-1, 3, 7 ("), HasSubstr(std::to_string(port))));
  }
}

TEST(MissingRanks, AMasterThatIsNotThereIsNamedWithTheReason) {
  const std::uint16_t port = free_port();
  const Status status = join_and_gather(launch_of(1, 2, port), patience(milliseconds(500)));
  EXPECT_EQ(Code::kTimeout, status.code());
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(formatted("127.0.0.1:{}", port)), HasSubstr("Connection refused"),
                    HasSubstr("ONEBIT_INIT_TIMEOUT"), HasSubstr("firewall")));

  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  take_listeners(*id);
  const Status by_id = Rendezvous::join(*id, 1, 2, patience(milliseconds(500))).status();
  EXPECT_THAT(by_id.message(), AllOf(HasSubstr("unique id"), HasSubstr("Connection refused")));
}

TEST(MissingRanks, ARankZeroThatIsBusyElsewhereIsSilentNotRefused) {
  const auto id = create_unique_id(plenty());  // listens, and nobody accepts
  ASSERT_TRUE(id.ok());
  const Status status = Rendezvous::join(*id, 1, 2, patience(milliseconds(500))).status();
  EXPECT_THAT(status.message(), HasSubstr("does not answer"));
}

TEST(DyingRanks, ARankKilledDuringSetUpIsNamedToAll) {
  const std::uint16_t port = free_port();
  std::array<int, 2> report{};
  ASSERT_EQ(0, ::pipe(report.data()));
  const pid_t child = ::fork();  // before there are threads
  if (child == 0) {
    const auto joined = half_a_rank(1, 4, port);
    const char done = joined.ok() ? 1 : 0;
    if (::write(report[1], &done, 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  std::thread killer([&] {
    char done = 0;
    EXPECT_EQ(1, ::read(report[0], &done, 1));
    EXPECT_EQ(1, done);
    std::this_thread::sleep_for(milliseconds(300));  // so that rank 2 has come as well
    ::kill(child, SIGKILL);
  });
  const auto results =
      run_ranks({0, 2}, [&](int rank) { return join_and_gather(launch_of(rank, 4, port), plenty()); });
  killer.join();
  ::waitpid(child, nullptr, 0);
  ::close(report[0]);
  ::close(report[1]);
  EXPECT_EQ(Code::kRemoteError, results[0].code());
  EXPECT_THAT(results[0].message(),
              AllOf(HasSubstr("rank 1 at 127.0.0.1 ("), HasSubstr(formatted("pid {})", child)),
                    HasSubstr("failed during set-up")));
  EXPECT_EQ(results[0].message(), results[1].message());
}

TEST(DyingRanks, ARankZeroThatDiesDuringSetUpIsNamed) {
  const std::uint16_t port = free_port();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(join_and_gather(launch_of(0, 3, port), plenty()).ok() ? 0 : 1);
  std::thread killer([&] {
    const auto joined = half_a_rank(2, 3, port);
    std::this_thread::sleep_for(milliseconds(300));
    ::kill(child, SIGKILL);
  });
  const Status status = join_and_gather(launch_of(1, 3, port), plenty());
  killer.join();
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(Code::kRemoteError, status.code());
  EXPECT_THAT(status.message(), HasSubstr("rank 0 at 127.0.0.1"));
}

TEST(LyingRanks, AMessageOutOfTurnOrOfAGiantLengthFailsTheJobWithTheRanksName) {
  const std::vector<std::string_view> lies{
      "\x03\0\0\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"sv,  // a length of 2^63 - 1
      "\x03\0\0\0\0\0\0\0\0\0\0\0"sv,                  // a part without its head
      "\x63\0\0\0\0\0\0\0\0\0\0\0"sv,                  // a type that there is not
      "\x02\0\0\0\x01\0\0\0\0\0\0\0\xFF"sv,            // a malformed failure
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    const int world_size = i == 0 ? 3 : 2;  // while others are awaited, and in the gather after that
    const std::uint16_t port = free_port();
    RankZero rank_zero(world_size, port, plenty());
    const auto liar = half_a_rank(1, world_size, port);
    ASSERT_TRUE(liar.ok()) << liar.status().message();
    ::send(liar->fd.get(), lies[i].data(), lies[i].size(), MSG_NOSIGNAL);
    const Status& status = rank_zero.wait();
    EXPECT_EQ(Code::kDataError, status.code()) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("rank 1 at 127.0.0.1"));
  }
}

/// Runs `body` in a child process with RLIMIT_NOFILE of 64; the child's exit status.
int in_a_child_with_few_descriptors(const std::function<Status()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const Status status = body();
    if (!status.ok()) std::fprintf(stderr, "child: %s\n", status.message().c_str());
    ::_exit(status.ok() ? 0 : 1);
  }
  return child;
}

TEST(Limits, WithFewFileDescriptorsStrangersDoNotKeepRanksOut) {
  const std::uint16_t port = free_port();
  const pid_t child =
      in_a_child_with_few_descriptors([&] { return join_and_gather(launch_of(0, 20, port), plenty()); });
  std::vector<UniqueSocket> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(port));
  std::vector<int> others = up_to(20);
  others.erase(others.begin());
  expect_all_ok(
      run_ranks(others, [&](int rank) { return join_and_gather(launch_of(rank, 20, port), plenty()); }));
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

TEST(Limits, MoreRanksThanFileDescriptorsIsAnErrorThatNamesTheLimitToAll) {
  const std::uint16_t port = free_port();
  const pid_t child = in_a_child_with_few_descriptors([&]() -> Status {
    const Status status = join_and_gather(launch_of(0, 100, port), plenty());
    if (status.message().find("RLIMIT_NOFILE") != std::string::npos) return Status();
    return Status::error(Code::kInternalError, "expected the limit, got: {}", status.message());
  });
  std::vector<int> others = up_to(80);
  others.erase(others.begin());
  const auto results = run_ranks(others, [&](int rank) {
    return join_and_gather(launch_of(rank, 100, port), patience(milliseconds(4000)));
  });
  int told = 0;
  for (const Status& status : results) {
    EXPECT_FALSE(status.ok());
    if (status.message().find("RLIMIT_NOFILE") != std::string::npos) ++told;
  }
  EXPECT_GT(told, 30) << "all that had come";
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

// ---- between two gathers ----

/// What rank 0 and rank 1 of three hear when rank 2 ends in the way of `end` after a first gather.
std::vector<Status> heard_when(const std::function<void(Rendezvous&)>& end) {
  const std::uint16_t port = free_port();
  return run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    const std::byte byte{1};
    ONEBIT_RETURN_IF_ERROR(rendezvous->all_gather(std::span(&byte, 1), Deadline::never()).status());
    if (rank == 2) {
      end(*rendezvous);
      return Status();
    }
    const Status heard = rendezvous->watch(Deadline::after(std::chrono::seconds(20)));
    EXPECT_EQ(heard.message(),
              rendezvous->all_gather(std::span(&byte, 1), Deadline::never()).status().message());
    return heard;
  });
}

TEST(Watch, HearsOfARankThatHasLeft) {
  const auto heard = heard_when([](Rendezvous&) {});
  for (const int rank : {0, 1}) {
    EXPECT_EQ(Code::kRemoteError, heard[static_cast<std::size_t>(rank)].code());
    EXPECT_THAT(heard[static_cast<std::size_t>(rank)].message(), HasSubstr("rank 2 at 127.0.0.1"));
  }
}

TEST(Watch, HearsWhyARankHasFailed) {
  const auto heard = heard_when([](Rendezvous& rendezvous) {
    EXPECT_EQ("no more chairs", rendezvous.fail(Status(Code::kSystemError, "no more chairs")).message());
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(heard[static_cast<std::size_t>(rank)].message(),
                AllOf(HasSubstr("rank 2 at 127.0.0.1"), HasSubstr("no more chairs")));
  }
}

TEST(Watch, TheFailureOfARankThatOnlySawAnotherFailIsThatOfTheOther) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    if (rank == 2) {
      ::usleep(50'000);  // the others have seen it first
      return rendezvous->fail(Status(Code::kSystemError, "no more chairs"));
    }
    return rendezvous->fail(Status(Code::kRemoteError, "a consequence"));
  });
  for (const Status& result : results) EXPECT_THAT(result.message(), HasSubstr("no more chairs"));
}

TEST(Watch, FindsNothingWhileAllIsWellAndLosesNoPartOfTheNextGather) {
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    for (int round = 0; round < 5; ++round) {
      // The others' parts reach rank 0 while it watches.
      const milliseconds time(rank == 0 ? 30 : 0);
      ONEBIT_RETURN_IF_ERROR(rendezvous->watch(Deadline::after(time)));
      const std::byte mine{static_cast<std::uint8_t>(10 * round + rank)};
      ONEBIT_ASSIGN_OR_RETURN(const auto all, rendezvous->all_gather(std::span(&mine, 1), Deadline::never()));
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(Bytes{std::byte(10 * round + i)}, all[static_cast<std::size_t>(i)]);
      }
    }
    return Status();
  }));
}

}  // namespace
}  // namespace onebit::bootstrap
