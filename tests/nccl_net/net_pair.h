// Two ends of connections through a net plugin's table, driven from one thread as NCCL drives them.
//
// The library is our plugin, or what the environment variable NET_PLUGIN names: the tests of the rules hold
// for any. Every test runs with each version that the library has.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "nccl_net_driver/net_library.h"
#include "support/pattern.h"

namespace onebit::nccl_net::test {

using abi::Result;

constexpr auto kLimit = std::chrono::seconds(30);

/// The library under test.
std::string library_file();
/// Its tables.
const std::vector<std::unique_ptr<Net>>& tables();
/// The table of one version; fails the test if there is none.
const Net& table_of(int version);
/// The versions that the library has, of those from `first` to `last`: the parameter of the suites.
std::vector<int> versions(int first = 6, int last = 12);

/// The lines of NCCL's log since the last call. Any thread.
void nccl_logger(int level, unsigned long subsystems, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
std::string take_log();
/// All lines since the start of the process.
std::string whole_log();

/// Calls `step` until it says true; false when the time is up.
bool until(const std::function<bool()>& step, std::chrono::milliseconds limit = kLimit);

using onebit::testing::pattern;
/// Descriptors that this process has open.
std::size_t open_descriptors();

/// An init, as a communicator makes one; finalized at the end. Its traffic class is that of its connections.
class Communicator {
 public:
  explicit Communicator(const Net& net, int traffic_class = abi::kNoTrafficClass);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();
  const Net& net() const { return net_; }
  void* ctx() const { return ctx_; }
  int traffic_class() const { return traffic_class_; }

 private:
  const Net& net_;
  void* ctx_ = nullptr;
  int traffic_class_;
};

/// Calls connect and accept, whichever has not given its comm yet, until both have. False when the time is
/// up.
bool make_comms(const Communicator& from, int device, void* handle, void* listening, void*& send,
                void*& receive, std::chrono::milliseconds limit = kLimit);

/// A connection from `from` to `to`.
class Connection {
 public:
  Connection(const Communicator& from, const Communicator& to, int device = 0);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }
  bool made() const { return send_ != nullptr && receive_ != nullptr; }
  void close();

  const Net& net;
  void* sender() const { return send_; }
  void* receiver() const { return receive_; }

  /// isend and irecv; null for back-pressure. Errors fail the test.
  void* send(const void* data, std::size_t bytes, int tag = 0) const;
  void* receive(void* data, std::size_t capacity, int tag = 0, void* request = nullptr) const;
  void* receive_many(std::vector<void*> data, std::vector<std::size_t> capacities,
                     std::vector<int> tags) const;

 private:
  void* send_ = nullptr;
  void* receive_ = nullptr;
};

/// A request that is tested until it has ended.
struct Pending {
  const Net* net;
  void* request;
  std::array<int, 8> sizes{};
  bool done = false;
  Result result = Result::kSuccess;

  Pending(const Net& n, void* r) : net(&n), request(r) { sizes.fill(-1); }
  /// True when it has ended, well or not.
  bool poll();
};

/// All have ended well; polled in the given order, round after round.
::testing::AssertionResult complete(std::vector<Pending*> pending, std::chrono::milliseconds limit = kLimit);

class EachVersion : public ::testing::TestWithParam<int> {
 protected:
  EachVersion() : net(table_of(GetParam())) {}
  const Net& net;
};

}  // namespace onebit::nccl_net::test

/// For versions `first` to `last` only: those that have what the suite is about.
#define ONEBIT_VERSIONS(suite, first, last)                                                          \
  INSTANTIATE_TEST_SUITE_P(Versions, suite,                                                          \
                           ::testing::ValuesIn(::onebit::nccl_net::test::versions(first, last)),     \
                           [](const auto& version) { return "v" + std::to_string(version.param); }); \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite)
#define ONEBIT_EACH_VERSION(suite) ONEBIT_VERSIONS(suite, 6, 12)
