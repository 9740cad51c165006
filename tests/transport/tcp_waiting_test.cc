// Waiting in progress(): threads and wakes, signals, no spinning, event_fd, and nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "transport_pair.h"

namespace onebit::transport::test {
namespace {

using State = Endpoint::State;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds cpu_time() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto ms = [](const timeval& t) { return t.tv_sec * 1000 + t.tv_usec / 1000; };
  return milliseconds(ms(usage.ru_utime) + ms(usage.ru_stime));
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(TcpWaiting, AnIdleWaitSleepsAndLastsAsLongAsAsked) {
  Pair pair(tcp_variant("", 2));
  ASSERT_TRUE(pair.connected());
  const auto start = Clock::now();
  const auto cpu = cpu_time();
  ASSERT_TRUE(progress(*pair.context_a, milliseconds(300)).ok());
  EXPECT_GE(Clock::now() - start, milliseconds(299));
  EXPECT_LT(cpu_time() - cpu, milliseconds(60));
}

TEST(TcpWaiting, AWakeEndsAWaitOrTheNextOne) {
  const auto context = make(tcp_variant("", 1));
  context->wake();
  ASSERT_TRUE(progress(*context, milliseconds(-1)).ok());
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(50));
    context->wake();
  });
  ASSERT_TRUE(progress(*context, milliseconds(-1)).ok());
  waker.join();
}

TEST(TcpWaiting, TheEventFdIsReadableWhenThereIsWork) {
  Pair pair(tcp_variant("", 2));
  ASSERT_TRUE(pair.connected());
  const auto readable = [&](Context& context, int timeout) {
    pollfd entry{context.event_fd(), POLLIN, 0};
    return ::poll(&entry, 1, timeout) == 1;
  };
  EXPECT_TRUE(readable(*pair.context_b, 0)) << "there may be work from before";
  const auto sent = pattern(32UL << 20, 1);
  std::vector<std::byte> received(sent.size());
  std::array<Request, 2> requests;
  ASSERT_TRUE(progress(*pair.context_b, milliseconds(20)).ok());
  EXPECT_FALSE(readable(*pair.context_b, 0));
  ASSERT_TRUE(pair.a->send(requests[0], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(requests[1], received.data(), received.size(), 1, 0).ok());
  // Each side moves only when its fd says so.
  for (const Deadline limit = Deadline::after(std::chrono::seconds(20)); !has_ended(requests[1]);) {
    ASSERT_FALSE(limit.passed());
    const bool b_ready = readable(*pair.context_b, 0);
    const bool a_ready = readable(*pair.context_a, b_ready ? 0 : 1000);
    if (b_ready) {
      ASSERT_TRUE(progress(*pair.context_b).ok());
    }
    if (a_ready) {
      ASSERT_TRUE(progress(*pair.context_a).ok());
    }
  }
  EXPECT_EQ(received, sent);
}

TEST(TcpWaiting, ReceivesGoOnUnderAStormOfSignals) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction old {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &old), 0);  // without SA_RESTART
  itimerval storm{{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &storm, nullptr), 0);
  {
    const auto sent = pattern(4UL << 20, 1);
    std::vector<std::byte> received(sent.size());
    for (int round = 0; round < 30; ++round) {
      Pair pair(tcp_variant("", 2));
      ASSERT_TRUE(pair.connected());
      std::array<Request, 2> requests;
      ASSERT_TRUE(pair.a->send(requests[0], sent.data(), sent.size(), 1, 0).ok());
      ASSERT_TRUE(pair.b->receive(requests[1], received.data(), received.size(), 1, 0).ok());
      ASSERT_TRUE(pair.drive([&] { return has_ended(requests[0]) && has_ended(requests[1]); }));
      ASSERT_EQ(received, sent);
      const auto start = Clock::now();
      ASSERT_TRUE(progress(*pair.context_b, milliseconds(20)).ok());
      EXPECT_GE(Clock::now() - start, milliseconds(19)) << "a signal must not cut a wait short";
    }
  }
  storm = {};
  setitimer(ITIMER_REAL, &storm, nullptr);
  sigaction(SIGALRM, &old, nullptr);
}

TEST(TcpWaiting, AThousandConnectsAndAbortsLeaveNoFileOpen) {
  const Variant variant = tcp_variant("", 2);
  const auto context_a = make(variant);
  const auto context_b = make(variant);
  const std::size_t before = open_files();
  for (int round = 0; round < 1000; ++round) {
    auto listener = context_b->listen(0);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    auto connecting = context_a->connect(0, (*listener)->handle(), {});
    ASSERT_TRUE(connecting.ok()) << connecting.status().message();
    std::unique_ptr<Endpoint> accepted;
    for (int i = 0; i < round % 8; ++i) {
      ASSERT_TRUE(progress(*context_a).ok());
      ASSERT_TRUE(progress(*context_b).ok());
      auto made = (*listener)->accept();
      ASSERT_TRUE(made.ok());
      if (*made) accepted = std::move(*made);
    }
    if (round % 3 == 0) (*connecting)->abort(Status(Code::kAborted, "round over"));
    if (round % 3 == 1 && accepted) accepted->abort(Status(Code::kAborted, "round over"));
  }
  EXPECT_EQ(open_files(), before);
}

TEST(TcpWaiting, AMeshOfThreadsExchangesEverything) {
  constexpr std::size_t kRanks = 6;
  constexpr std::size_t kBytes = 500'003;
  std::vector<Handle> handles(kRanks);
  std::atomic<std::size_t> listening{0};
  std::atomic<std::size_t> good{0};
  const Variant variant = tcp_variant("", 2);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto context = make(variant);
      auto listener = context->listen(0);
      handles[rank] = (*listener)->handle();
      ++listening;
      while (listening < kRanks) std::this_thread::yield();
      // Lower ranks are connected to, higher ones come.
      std::vector<std::unique_ptr<Endpoint>> peers(kRanks);
      const std::array<std::byte, 1> hello{static_cast<std::byte>(rank)};
      for (std::size_t to = 0; to < rank; ++to) {
        auto made = context->connect(0, handles[to], hello);
        EXPECT_TRUE(made.ok());
        peers[to] = std::move(*made);
      }
      EXPECT_TRUE(drive({context.get()}, [&] {
        auto made = (*listener)->accept();
        if (made.ok() && *made) peers[static_cast<std::size_t>((*made)->hello()[0])] = std::move(*made);
        for (std::size_t peer = 0; peer < kRanks; ++peer) {
          if (peer != rank && (!peers[peer] || peers[peer]->state() != State::kReady)) return false;
        }
        return true;
      }));
      std::vector<std::vector<std::byte>> received(kRanks, std::vector<std::byte>(kBytes));
      const auto sent = pattern(kBytes, static_cast<std::uint32_t>(rank));
      std::vector<Request> requests(2 * kRanks);
      for (int round = 0; round < 10; ++round) {
        for (std::size_t peer = 0; peer < kRanks; ++peer) {
          if (peer == rank) continue;
          EXPECT_TRUE(peers[peer]->receive(requests[peer], received[peer].data(), kBytes, 1, 0).ok());
          EXPECT_TRUE(peers[peer]->send(requests[kRanks + peer], sent.data(), kBytes, 1, 0).ok());
        }
        EXPECT_TRUE(drive({context.get()}, [&] {
          return std::none_of(requests.begin(), requests.end(),
                              [](const Request& r) { return r.state == Request::State::kPending; });
        }));
      }
      for (const auto& peer : peers) {
        if (peer) peer->finish();
      }
      EXPECT_TRUE(drive({context.get()}, [&] {
        return std::all_of(peers.begin(), peers.end(),
                           [](const auto& peer) { return !peer || peer->closed(); });
      }));
      for (std::size_t peer = 0; peer < kRanks; ++peer) {
        if (peer != rank && received[peer] == pattern(kBytes, static_cast<std::uint32_t>(peer))) ++good;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(good, kRanks * (kRanks - 1));
}

}  // namespace
}  // namespace onebit::transport::test
