// Ranks for tests: as threads of this process, each with a communicator of its own, joined by a unique id
// over loopback.
//
// A failed call inside a rank is a failed assertion of the test that names the rank. Threads: run_ranks joins
// all before it returns.
#pragma once

#include <gtest/gtest.h>
#include <onebit/onebit.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/random.h"

namespace onebit::testing {

/// Fails the test with the library's own words.
inline ::testing::AssertionResult succeeded(onebitResult_t result) {
  if (result == onebitSuccess) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << onebitGetErrorString(result) << ": " << onebitGetLastError(nullptr);
}

struct RankOptions {
  std::string settings;  ///< "NAME=VALUE" lines on top of loopback and short deadlines
  std::string name = "test";
};

/// Settings under which ranks of one machine meet, and a fault shows soon.
inline std::string loopback_settings() {
  return "ONEBIT_SOCKET_IFNAME=lo\nONEBIT_INIT_TIMEOUT=30s\nONEBIT_TIMEOUT=20s\n";
}

/// Runs `body(rank, comm)` on `ranks` threads.
inline void run_ranks(int ranks, const std::function<void(int, onebitComm_t)>& body,
                      const RankOptions& options = {}) {
  ::setenv("ONEBIT_SOCKET_IFNAME", "lo", 1);
  onebitUniqueId id;
  ASSERT_TRUE(succeeded(onebitGetUniqueId(&id)));
  const std::string settings = loopback_settings() + options.settings;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const onebitConfig_t config{sizeof(onebitConfig_t), options.name.c_str(), settings.c_str()};
      onebitComm_t comm = nullptr;
      ASSERT_TRUE(succeeded(onebitCommInitRankConfig(&comm, ranks, id, rank, &config)));
      body(rank, comm);
      EXPECT_TRUE(succeeded(onebitCommDestroy(comm)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace onebit::testing
