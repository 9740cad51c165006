// The rendezvous when all is well: sizes, ways in, what every rank knows afterwards, gathers, forks.
#include "bootstrap/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "ranks.h"

namespace onebit::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Whether all ranks have the same key, know each other, and gather.
class Meeting {
 public:
  explicit Meeting(int world_size) : world_size_(world_size) {}

  Status visit(Rendezvous& rendezvous) {
    {
      const std::lock_guard lock(mutex_);
      keys_.insert(rendezvous.job_key());
    }
    EXPECT_EQ(world_size_, rendezvous.world_size());
    EXPECT_EQ(world_size_, rendezvous.local_ranks());
    EXPECT_TRUE(rendezvous.own_address().valid());
    EXPECT_EQ(0, rendezvous.own_address().port());
    for (int rank = 0; rank < world_size_; ++rank) {
      EXPECT_THAT(rendezvous.where(rank), HasSubstr(formatted("pid {})", ::getpid())));
    }
    EXPECT_EQ("(no such rank)", rendezvous.where(world_size_));
    EXPECT_EQ("(no such rank)", rendezvous.where(-1));
    for (int round = 0; round < 5; ++round) ONEBIT_RETURN_IF_ERROR(gather_and_check(rendezvous, round));
    return Status();
  }
  void expect_one_key() const {
    EXPECT_EQ(1U, keys_.size());
    EXPECT_EQ(0U, keys_.count(Key{}));
  }

 private:
  int world_size_;
  std::mutex mutex_;
  std::set<Key> keys_;
};

class Sizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rendezvous, Sizes, ::testing::Values(1, 2, 3, 7, 64));

TEST_P(Sizes, MeetByTheLauncher) {
  const std::uint16_t port = free_port();
  Meeting meeting(GetParam());
  expect_all_ok(run_ranks(up_to(GetParam()), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous,
                            Rendezvous::join(launch_of(rank, GetParam(), port), plenty()));
    EXPECT_EQ(rank, rendezvous->rank());
    EXPECT_TRUE(GetParam() == 1 || rendezvous->own_address().is_loopback());
    return meeting.visit(*rendezvous);
  }));
  meeting.expect_one_key();
}

TEST_P(Sizes, MeetByAUniqueId) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok()) << id.status().message();
  Meeting meeting(GetParam());
  expect_all_ok(run_ranks(up_to(GetParam()), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(*id, rank, GetParam(), plenty()));
    return meeting.visit(*rendezvous);
  }));
  meeting.expect_one_key();
}

TEST(Rendezvous, MeetsOverIPv6) {
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous,
                            Rendezvous::join(launch_of(rank, 3, port, "::1"), plenty()));
    EXPECT_EQ("::1", rendezvous->own_address().host());
    EXPECT_THAT(rendezvous->where(0), HasSubstr("::1 ("));
    return gather_and_check(*rendezvous, 0);
  }));
}

TEST(Rendezvous, MeetsOnANamedInterface) {
  const std::uint16_t port = free_port();
  for (const char* host : {"127.0.0.1", "::1"}) {
    expect_all_ok(run_ranks(up_to(2), [&](int rank) -> Status {
      Settings settings = plenty();
      settings.socket_ifname = "=lo";
      ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous,
                              Rendezvous::join(launch_of(rank, 2, port, host), settings));
      EXPECT_TRUE(rendezvous->own_address().is_loopback());
      return gather_and_check(*rendezvous, 0);
    }));
  }
  Settings settings = plenty();
  settings.socket_ifname = "=nonesuch";
  EXPECT_THAT(create_unique_id(settings).status().message(), HasSubstr("=nonesuch"));
}

TEST(Rendezvous, MeetsByASecret) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(2), [&](int rank) -> Status {
    Settings settings = plenty();
    settings.secret = "correct horse battery staple";
    ONEBIT_ASSIGN_OR_RETURN(const auto by_id, Rendezvous::join(*id, rank, 2, settings));
    ONEBIT_ASSIGN_OR_RETURN(const auto by_launcher, Rendezvous::join(launch_of(rank, 2, port), settings));
    ONEBIT_RETURN_IF_ERROR(gather_and_check(*by_id, 0));
    return gather_and_check(*by_launcher, 1);
  }));
}

TEST(Rendezvous, MeetsAgainOnTheSamePortWhileTheFirstLives) {
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(4), [&](int rank) -> Status {
    std::vector<std::unique_ptr<Rendezvous>> all;
    for (int i = 0; i < 5; ++i) {
      ONEBIT_ASSIGN_OR_RETURN(auto next, Rendezvous::join(launch_of(rank, 4, port), plenty()));
      all.push_back(std::move(next));
    }
    for (const auto& one : all) ONEBIT_RETURN_IF_ERROR(gather_and_check(*one, 3));
    return Status();
  }));
}

TEST(Rendezvous, RanksWaitForALateRankZero) {
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(3), [&](int rank) -> Status {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    return gather_and_check(*rendezvous, 0);
  }));
}

TEST(Rendezvous, GathersPartsOfEverySizeUpToTheLimitAndNoLarger) {
  const std::uint16_t port = free_port();
  expect_all_ok(run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    EXPECT_EQ(Code::kInvalidArgument,
              rendezvous->all_gather(Bytes(64 * 1024 + 1), Deadline::never()).status().code());
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{64 * 1024}}) {
      const std::size_t mine = rank == 1 ? 64 * 1024 - size : size;
      ONEBIT_ASSIGN_OR_RETURN(const auto parts,
                              rendezvous->all_gather(Bytes(mine, std::byte{7}), Deadline::never()));
      EXPECT_EQ(size, parts[0].size());
      EXPECT_EQ(Bytes(64 * 1024 - size, std::byte{7}), parts[1]);
      EXPECT_EQ(size, parts[2].size());
    }
    return Status();
  }));
}

TEST(Rendezvous, AGatherNamesTheRanksThatAreLateToEveryRank) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(5), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(launch_of(rank, 5, port), plenty()));
    if (rank == 2 || rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      return rendezvous->all_gather({}, Deadline::never()).status();
    }
    // Rank 4 has the shortest patience; rank 0 would wait for ever.
    const auto time = std::chrono::milliseconds(rank == 4 ? 300 : 20'000);
    const Status status =
        rendezvous->all_gather({}, rank == 0 ? Deadline::never() : Deadline::after(time)).status();
    EXPECT_EQ(status.message(), rendezvous->all_gather({}, Deadline::never()).status().message())
        << "it stays broken";
    return status;
  });
  for (const Status& status : results) {
    EXPECT_EQ(Code::kTimeout, status.code());
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("no word in time from ranks 2-3"), HasSubstr("rank 2 at 127.0.0.1 (")));
  }
}

TEST(Rendezvous, AGatherNamesARankZeroThatIsLate) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(2), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(launch_of(rank, 2, port), plenty()));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    return rendezvous->all_gather({}, Deadline::after(std::chrono::milliseconds(200))).status();
  });
  EXPECT_THAT(results[1].message(), HasSubstr("rank 0 at 127.0.0.1 ("));
  EXPECT_FALSE(results[0].ok());
}

TEST(Rendezvous, AGatherNamesARankThatHasLeft) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(4), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch_of(rank, 4, port), plenty()));
    ONEBIT_RETURN_IF_ERROR(gather_and_check(*rendezvous, 0));
    if (rank == 2) return Status();
    return rendezvous->all_gather({}, Deadline::never()).status();
  });
  EXPECT_TRUE(results[2].ok());
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_EQ(Code::kRemoteError, results[rank].code());
    EXPECT_THAT(results[rank].message(), HasSubstr("rank 2 at 127.0.0.1 ("));
  }
}

TEST(Rendezvous, AGatherNamesARankZeroThatHasLeft) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch_of(rank, 3, port), plenty()));
    if (rank == 0) return Status();
    return rendezvous->all_gather({}, Deadline::never()).status();
  });
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_EQ(Code::kRemoteError, results[rank].code());
    EXPECT_THAT(results[rank].message(), HasSubstr("rank 0 at 127.0.0.1 ("));
  }
}

TEST(Rendezvous, IsInertInAForkedChildAndUnharmedByIt) {
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Rendezvous>> all(3);
  expect_all_ok(run_ranks(up_to(3), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(all[static_cast<std::size_t>(rank)],
                            Rendezvous::join(launch_of(rank, 3, port), plenty()));
    return Status();
  }));
  const pid_t child = ::fork();
  if (child == 0) {
    bool inert = true;
    for (auto& one : all) {
      inert = inert && one->all_gather({}, Deadline::never()).status().code() == Code::kInvalidUsage;
      one.reset();
    }
    ::_exit(inert ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  expect_all_ok(run_ranks(
      up_to(3), [&](int rank) { return gather_and_check(*all[static_cast<std::size_t>(rank)], 1); }));
}

TEST(Rendezvous, AForkedChildDoesNotHideTheEndOfItsParent) {
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Rendezvous>> all(2);
  expect_all_ok(run_ranks(up_to(2), [&](int rank) -> Status {
    ONEBIT_ASSIGN_OR_RETURN(all[static_cast<std::size_t>(rank)],
                            Rendezvous::join(launch_of(rank, 2, port), plenty()));
    return Status();
  }));
  const pid_t child = ::fork();  // holds copies of all sockets
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  all[1].reset();
  EXPECT_EQ(Code::kRemoteError,
            all[0]->all_gather({}, Deadline::after(std::chrono::seconds(20))).status().code());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(UniqueId, HoldsWhatRankZeroOffers) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  const auto contents = read_unique_id(*id);
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  EXPECT_GE(contents->addresses.size(), 1U);
  for (const SocketAddress& address : contents->addresses) EXPECT_NE(0, address.port());
  EXPECT_NE(contents->key, read_unique_id(*create_unique_id(plenty()))->key);
  EXPECT_EQ(contents->addresses.size(), take_listeners(*id).size());
  EXPECT_TRUE(take_listeners(*id).empty()) << "taken";
}

TEST(UniqueId, HoldsIPv6AddressesAndPortsOfTheRange) {
  Settings settings = plenty();
  settings.socket_ifname = "=lo";
  settings.socket_family = SocketFamily::kIPv6;
  const std::uint16_t port = free_port();
  settings.port_range = {port, port};
  const auto id = create_unique_id(settings);
  ASSERT_TRUE(id.ok()) << id.status().message();
  const auto contents = read_unique_id(*id);
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(formatted("[::1]:{}", port), contents->addresses.front().to_string());
  EXPECT_THAT(create_unique_id(settings).status().message(), HasSubstr("ONEBIT_PORT_RANGE"));
}

TEST(UniqueId, IsRefusedWhenAnyBitIsChanged) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  for (std::size_t at = 0; at < id->bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80}) {
      UniqueId damaged = *id;
      damaged.bytes[at] ^= static_cast<std::byte>(flip);
      EXPECT_EQ(Code::kInvalidArgument, read_unique_id(damaged).status().code()) << at;
      EXPECT_FALSE(Rendezvous::join(damaged, 1, 2, plenty()).ok());
    }
  }
  UniqueId other_version = *id;
  other_version.bytes[8] = std::byte{7};
  EXPECT_THAT(read_unique_id(other_version).status().message(),
              AllOf(HasSubstr("version 7"), HasSubstr("version 1")));
  EXPECT_THAT(read_unique_id(UniqueId()).status().message(), HasSubstr("no unique id"));
}

TEST(UniqueId, ServesOnlyTheProcessThatMadeItAndOnlyOnce) {
  const auto id = create_unique_id(plenty());
  ASSERT_TRUE(id.ok());
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(Rendezvous::join(*id, 0, 1, plenty()).status().code() == Code::kInvalidUsage ? 0 : 1);
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_TRUE(Rendezvous::join(*id, 0, 1, plenty()).ok());
  EXPECT_EQ(Code::kInvalidUsage, Rendezvous::join(*id, 0, 1, plenty()).status().code());
}

}  // namespace
}  // namespace onebit::bootstrap
