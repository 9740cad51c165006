// Ranks as threads, made-up launches, and strangers, for the tests of the rendezvous.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"
#include "bootstrap/joining.h"
#include "bootstrap/member.h"
#include "bootstrap/rendezvous.h"

namespace onebit::bootstrap {

using Bytes = std::vector<std::byte>;

inline SocketAddress loopback(std::uint16_t port = 0, const char* host = "127.0.0.1") {
  const auto found = resolve(host, port, SocketFamily::kAny);
  EXPECT_TRUE(found.ok());
  return found->front();
}

/// A port of 127.0.0.1 on which nobody listens, outside the range from which the kernel takes ports of its
/// own.
inline std::uint16_t free_port() {
  const auto listener = listen_on(loopback(), {10'000, 30'000});
  EXPECT_TRUE(listener.ok());
  return local_address(listener->get())->port();
}

inline Settings patience(std::chrono::milliseconds time) {
  Settings settings;
  settings.init_timeout = time;
  return settings;
}
inline Settings plenty() {
  return patience(std::chrono::seconds(60));
}

inline Launch launch_of(int rank, int world_size, std::uint16_t port, std::string host = "127.0.0.1") {
  Launch launch;
  launch.rank = rank;
  launch.world_size = world_size;
  launch.master_host = std::move(host);
  launch.master_port = port;
  return launch;
}

/// Runs `body(i)` in a thread for each i of `numbers`; their results in the order of `numbers`.
inline std::vector<Status> run_ranks(const std::vector<int>& numbers,
                                     const std::function<Status(int)>& body) {
  std::vector<Status> results(numbers.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = body(numbers[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}
inline std::vector<int> up_to(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}
inline void expect_all_ok(const std::vector<Status>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].ok()) << "entry " << i << ": " << results[i].message();
  }
}

/// A connection of somebody who does not belong, once the port is open; sends `greeting`.
inline UniqueSocket stranger(std::uint16_t port, std::string_view greeting = "",
                             const char* host = "127.0.0.1") {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (!deadline.passed()) {
    auto fd = start_connect(loopback(port, host), SocketAddress());
    if (!fd.ok()) continue;
    pollfd entry{fd->get(), POLLOUT, 0};
    if (::poll(&entry, 1, 1000) == 1 && connect_error(fd->get()) == 0) {
      if (!greeting.empty()) ::send(fd->get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      return std::move(*fd);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "port " << port << " never opened";
  return UniqueSocket();
}

/// Closes with a reset instead of an end of stream.
inline void reset_connection(UniqueSocket fd) {
  const linger now{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/// What the other end says until it closes or falls silent for 10 s.
inline std::string all_that_comes(int fd) {
  std::string text;
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 10'000) != 1) return text + "(silence)";
    std::array<char, 256> buffer{};
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

/// What rank `rank` gives in round `round` of a gather: another size each time, 0 and odd ones among them.
inline Bytes part_of(int rank, int round) {
  const std::size_t size = static_cast<std::size_t>((rank * 977 + round * 131) % 3001);
  Bytes part(size);
  for (std::size_t i = 0; i < size; ++i) {
    part[i] = static_cast<std::byte>((i * 7 + static_cast<std::size_t>(rank) * 31) & 0xFF);
  }
  return part;
}
/// One gather, checked.
inline Status gather_and_check(Rendezvous& rendezvous, int round) {
  ONEBIT_ASSIGN_OR_RETURN(
      const std::vector<Bytes> parts,
      rendezvous.all_gather(part_of(rendezvous.rank(), round), Deadline::after(std::chrono::seconds(30))));
  for (int rank = 0; rank < rendezvous.world_size(); ++rank) {
    if (parts[static_cast<std::size_t>(rank)] != part_of(rank, round)) {
      return Status::error(Code::kInternalError, "wrong bytes of rank {}", rank);
    }
  }
  return Status();
}

inline Status join_and_gather(const Launch& launch, const Settings& settings) {
  ONEBIT_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::join(launch, settings));
  return gather_and_check(*rendezvous, 0);
}

/// The key of jobs by launcher without secret and job id.
inline Key public_key() {
  return derive_key("", "onebit rendezvous without a secret");
}

/// Rank `rank` up to the point where rank 0 has taken it in; the connection is all there is of it.
inline Result<Connected> half_a_rank(int rank, int world_size, std::uint16_t port) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  Status last;
  while (!deadline.passed()) {
    bool final = false;
    auto joined = try_join(loopback(port), SocketAddress(), public_key(),
                           this_member(rank, world_size, "", std::chrono::seconds(60)),
                           std::chrono::milliseconds(5000), deadline, final);
    if (joined.ok()) return joined;
    last = joined.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return last;
}

/// Rank 0 in a thread of its own, while the test does something to its port.
class RankZero {
 public:
  RankZero(int world_size, std::uint16_t port, const Settings& settings)
      : thread_([=, this] { status_ = join_and_gather(launch_of(0, world_size, port), settings); }) {}
  ~RankZero() {
    if (thread_.joinable()) thread_.join();
  }
  const Status& wait() {
    thread_.join();
    return status_;
  }

 private:
  Status status_;
  std::thread thread_;
};

}  // namespace onebit::bootstrap
