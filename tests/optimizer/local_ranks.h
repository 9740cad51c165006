// Ranks as threads of this process, each with a communicator of the collective layer over loopback.
//
// The first failure of any rank is what run_local_ranks comes to. Threads: it joins all before it returns.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "bootstrap/rendezvous.h"
#include "collective/communicator.h"

namespace onebit::testing {

/// Loopback, short deadlines, and "NAME=VALUE" lines.
inline Result<Settings> local_settings(const std::string& lines) {
  ONEBIT_ASSIGN_OR_RETURN(Settings settings, Settings::from_environment());
  ONEBIT_RETURN_IF_ERROR(apply_settings(
      settings, "ONEBIT_SOCKET_IFNAME=lo\nONEBIT_INIT_TIMEOUT=30s\nONEBIT_TIMEOUT=20s\n" + lines));
  return settings;
}

/// A communicator of one rank, made in this thread.
inline Result<std::unique_ptr<collective::Communicator>> lone_communicator(const std::string& lines = "") {
  ONEBIT_ASSIGN_OR_RETURN(const Settings settings, local_settings(lines));
  ONEBIT_ASSIGN_OR_RETURN(const auto id, bootstrap::create_unique_id(settings));
  ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, bootstrap::Rendezvous::join(id, 0, 1, settings));
  return collective::Communicator::create(std::move(rendezvous), "test", settings);
}

/// Runs body(rank, communicator) on `ranks` threads. `lines`: "NAME=VALUE" settings.
inline Status run_local_ranks(int ranks, const std::string& lines,
                              const std::function<Status(int, collective::Communicator&)>& body) {
  ONEBIT_ASSIGN_OR_RETURN(const Settings settings, local_settings(lines));
  ONEBIT_ASSIGN_OR_RETURN(const auto id, bootstrap::create_unique_id(settings));
  std::mutex mutex;
  Status first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto run = [&]() -> Status {
        ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, bootstrap::Rendezvous::join(id, rank, ranks, settings));
        ONEBIT_ASSIGN_OR_RETURN(auto communicator,
                                collective::Communicator::create(std::move(rendezvous), "test", settings));
        return body(rank, *communicator);
      };
      Status status;
      try {
        status = run();
      } catch (const std::exception& error) {
        status = Status(Code::kInternalError, error.what());
      }
      const std::lock_guard lock(mutex);
      if (first.ok()) first = status.with_context(formatted("rank {}", rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace onebit::testing
