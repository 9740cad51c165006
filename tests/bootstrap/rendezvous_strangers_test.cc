// Strangers on the port of a rendezvous: they neither join nor delay nor break it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "ranks.h"

namespace onebit::bootstrap {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::string_literals;
using namespace std::string_view_literals;

TEST(Strangers, OfAnyKindNeitherJoinNorDelayNorBreakTheJob) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(3, port, plenty());
  std::vector<UniqueSocket> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(port));
  const UniqueSocket http = stranger(port, "GET / HTTP/1.1\r\nHost: node1\r\n\r\n");
  const UniqueSocket tls = stranger(port, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"sv);
  const UniqueSocket garbage = stranger(port, std::string(100'000, 'x'));
  const UniqueSocket half_a_hello = stranger(port, "\xB1onebit\n\x01"sv);
  reset_connection(stranger(port));
  reset_connection(stranger(port, "\xB1onebit\n"));
  stranger(port).reset();
  EXPECT_EQ("", all_that_comes(http.get())) << "closed without a word";
  EXPECT_EQ("", all_that_comes(tls.get()));

  expect_all_ok(
      run_ranks({1, 2}, [&](int rank) { return join_and_gather(launch_of(rank, 3, port), plenty()); }));
  EXPECT_TRUE(rank_zero.wait().ok());
  EXPECT_EQ("", all_that_comes(silent.back().get())) << "rank 0 has closed them all";
}

TEST(Strangers, SilentOnesAreClosedAfterAFewSeconds) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(2, port, plenty());
  const UniqueSocket silent = stranger(port);
  const UniqueSocket slow = stranger(port, "\xB1one");
  EXPECT_EQ("", all_that_comes(silent.get()));
  EXPECT_EQ("", all_that_comes(slow.get()));
  EXPECT_TRUE(join_and_gather(launch_of(1, 2, port), plenty()).ok());
  EXPECT_TRUE(rank_zero.wait().ok());
}

TEST(Strangers, AFloodOfThemDuringTheJoinIsSurvived) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(4, port, plenty());
  std::atomic<bool> stop = false;
  std::vector<std::thread> flood;
  for (int i = 0; i < 2; ++i) {
    flood.emplace_back([&] {
      std::vector<UniqueSocket> held;
      while (!stop) {
        auto fd = start_connect(loopback(port), SocketAddress());
        if (fd.ok()) held.push_back(std::move(*fd));
        if (held.size() > 300) held.erase(held.begin(), held.begin() + 150);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  expect_all_ok(run_ranks({1, 2, 3}, [&](int rank) {
    std::this_thread::sleep_for(milliseconds(300));
    return join_and_gather(launch_of(rank, 4, port), plenty());
  }));
  stop = true;
  for (std::thread& thread : flood) thread.join();
  EXPECT_TRUE(rank_zero.wait().ok());
}

TEST(Strangers, AServiceOnTheMastersPortIsNamedAfterTheDeadline) {
  const auto listener = listen_on(loopback(), {});
  ASSERT_TRUE(listener.ok());
  const std::uint16_t port = local_address(listener->get())->port();
  std::atomic<bool> stop = false;
  std::thread service([&] {
    std::vector<UniqueSocket> held;
    while (!stop) {
      auto fd = accept_from(listener->get(), nullptr);
      if (fd.ok() && *fd) {
        ::send(fd->get(), "HTTP/1.1 400 Bad Request\r\n", 26, MSG_NOSIGNAL);
        held.push_back(std::move(*fd));
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const auto results = run_ranks({0, 1}, [&](int rank) {
    return join_and_gather(launch_of(rank, 2, port), patience(milliseconds(600)));
  });
  stop = true;
  service.join();
  EXPECT_THAT(results[0].message(), AllOf(HasSubstr("ONEBIT_MASTER_PORT"), HasSubstr("in use")));
  EXPECT_EQ(Code::kTimeout, results[1].code());
  EXPECT_THAT(results[1].message(), AllOf(HasSubstr("not onebit's protocol"), HasSubstr(std::to_string(port)),
                                          HasSubstr("MASTER_ADDR")));
}

TEST(Strangers, RanksOfAnotherJobAreTurnedAwayAndTheJobGoesOn) {
  for (const std::string secret : {"", "a shared secret"}) {
    const std::uint16_t port = free_port();
    Settings settings = plenty();
    settings.secret = secret;
    std::thread other([&] {
      Settings impatient = settings;
      impatient.init_timeout = milliseconds(800);
      Launch launch = launch_of(1, 2, port);
      launch.job_id = "other";
      const Status status = join_and_gather(launch, impatient);
      EXPECT_THAT(status.message(), HasSubstr("another job")) << status.message();
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(port)));
    });
    const auto results = run_ranks(up_to(2), [&](int rank) {
      if (rank == 1) std::this_thread::sleep_for(milliseconds(900));
      return join_and_gather(launch_of(rank, 2, port), settings);
    });
    other.join();
    expect_all_ok(results);
  }
}

TEST(Strangers, ARankWithAnotherSecretGetsAClearErrorAndRankZeroNamesItAsTheReason) {
  const std::uint16_t port = free_port();
  const auto results = run_ranks(up_to(2), [&](int rank) {
    Settings settings = patience(milliseconds(rank == 0 ? 4000 : 30'000));
    settings.secret = rank == 0 ? "right" : "wrong";
    return join_and_gather(launch_of(rank, 2, port), settings);
  });
  EXPECT_EQ(Code::kInvalidUsage, results[1].code()) << "well before its deadline";
  EXPECT_THAT(results[1].message(), AllOf(HasSubstr("another secret"), HasSubstr("ONEBIT_SECRET")));
  EXPECT_EQ(Code::kTimeout, results[0].code());
  EXPECT_THAT(results[0].message(), AllOf(HasSubstr("missing is rank 1"), HasSubstr("another secret")));
}

TEST(Strangers, AnOldReleaseIsToldTheVersionsAndTheJobGoesOn) {
  const std::uint16_t port = free_port();
  RankZero rank_zero(2, port, plenty());
  const UniqueSocket old = stranger(port, "\xB1onebit\n"s + "\0\0\x01\x01"s + std::string(32, 'n'));
  const std::string answer = all_that_comes(old.get());
  ASSERT_EQ(12U, answer.size());
  EXPECT_EQ("\xB1onebit\n"s + static_cast<char>(kHandshakeVersion), answer.substr(0, 9));
  EXPECT_TRUE(join_and_gather(launch_of(1, 2, port), plenty()).ok());
  EXPECT_TRUE(rank_zero.wait().ok());
}

}  // namespace
}  // namespace onebit::bootstrap
