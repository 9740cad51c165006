#include "net_pair.h"

#include <dirent.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace onebit::nccl_net::test {
namespace {

std::mutex g_log_mutex;
std::string g_log;
std::size_t g_log_taken = 0;

}  // namespace

std::string library_file() {
  const char* other = std::getenv("NET_PLUGIN");
  return other != nullptr ? other : ONEBIT_NET_PLUGIN_FILE;
}

const std::vector<std::unique_ptr<Net>>& tables() {
  static const std::vector<std::unique_ptr<Net>> loaded = [] {
    ::setenv("NCCL_SOCKET_IFNAME", "=lo", 0);
    auto found = load_net_library(library_file());
    if (!found.ok()) {
      std::fprintf(stderr, "%s\n", found.status().message().c_str());
      std::abort();
    }
    return std::move(*found);
  }();
  return loaded;
}

const Net& table_of(int version) {
  for (const auto& net : tables()) {
    if (net->version() == version) return *net;
  }
  ADD_FAILURE() << "no table of version " << version;
  return *tables().back();
}

std::vector<int> versions(int first, int last) {
  std::vector<int> found;
  for (const auto& net : tables()) {
    if (net->version() >= first && net->version() <= last) found.push_back(net->version());
  }
  return found;
}

void nccl_logger(int level, unsigned long /*subsystems*/, const char* /*file*/, int /*line*/,
                 const char* format, ...) {
  std::array<char, 2048> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_log_mutex);
  g_log += level == abi::kLogWarn ? "WARN " : level == abi::kLogInfo ? "INFO " : "TRACE ";
  g_log += text.data();
  g_log += '\n';
}

std::string take_log() {
  const std::lock_guard lock(g_log_mutex);
  return g_log.substr(std::exchange(g_log_taken, g_log.size()));
}

std::string whole_log() {
  const std::lock_guard lock(g_log_mutex);
  return g_log;
}

bool until(const std::function<bool()>& step, std::chrono::milliseconds limit) {
  for (const Deadline deadline = Deadline::after(limit); !step();) {
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

Communicator::Communicator(const Net& net, int traffic_class) : net_(net), traffic_class_(traffic_class) {
  EXPECT_EQ(net.init(&ctx_, &nccl_logger, traffic_class), Result::kSuccess) << take_log();
}

Communicator::~Communicator() {
  EXPECT_EQ(net_.finalize(ctx_), Result::kSuccess);
}

bool make_comms(const Communicator& from, int device, void* handle, void* listening, void*& send,
                void*& receive, std::chrono::milliseconds limit) {
  const Net& net = from.net();
  const auto step = [&] {
    if (send == nullptr) {
      EXPECT_EQ(net.connect(from.ctx(), device, handle, &send, from.traffic_class()), Result::kSuccess)
          << take_log();
    }
    if (receive == nullptr) {
      EXPECT_EQ(net.accept(listening, &receive), Result::kSuccess) << take_log();
    }
    return (send != nullptr && receive != nullptr) || ::testing::Test::HasFailure();
  };
  return until(step, limit);
}

Connection::Connection(const Communicator& from, const Communicator& to, int device) : net(from.net()) {
  std::array<std::byte, abi::kHandleBytes> handle{};
  void* listening = nullptr;
  EXPECT_EQ(net.listen(to.ctx(), device, handle.data(), &listening), Result::kSuccess) << take_log();
  if (listening == nullptr) return;
  EXPECT_TRUE(make_comms(from, device, handle.data(), listening, send_, receive_))
      << "connect and accept do not come to an end";
  EXPECT_EQ(net.close_listen(listening), Result::kSuccess);
}

void Connection::close() {
  if (send_ != nullptr) {
    EXPECT_EQ(net.close_send(send_), Result::kSuccess);
  }
  if (receive_ != nullptr) {
    EXPECT_EQ(net.close_receive(receive_), Result::kSuccess);
  }
  send_ = receive_ = nullptr;
}

void* Connection::send(const void* data, std::size_t bytes, int tag) const {
  void* request = nullptr;
  EXPECT_EQ(net.isend(send_, const_cast<void*>(data), bytes, tag, nullptr, &request), Result::kSuccess)
      << take_log();
  return request;
}

void* Connection::receive(void* data, std::size_t capacity, int tag, void* request) const {
  void* mhandle = nullptr;
  EXPECT_EQ(net.irecv(receive_, {&data, 1}, {&capacity, 1}, {&tag, 1}, {&mhandle, 1}, &request),
            Result::kSuccess)
      << take_log();
  return request;
}

void* Connection::receive_many(std::vector<void*> data, std::vector<std::size_t> capacities,
                               std::vector<int> tags) const {
  std::vector<void*> mhandles(data.size());
  void* request = nullptr;
  EXPECT_EQ(net.irecv(receive_, data, capacities, tags, mhandles, &request), Result::kSuccess) << take_log();
  return request;
}

bool Pending::poll() {
  if (done || result != Result::kSuccess) return true;
  int ended = 0;
  result = net->test(request, &ended, sizes.data());
  done = ended != 0;
  return done || result != Result::kSuccess;
}

::testing::AssertionResult complete(std::vector<Pending*> pending, std::chrono::milliseconds limit) {
  const bool ended = until(
      [&] {
        bool all = true;
        for (Pending* each : pending) all &= each->poll();
        return all;
      },
      limit);
  if (!ended) return ::testing::AssertionFailure() << "not all requests have ended\n" << take_log();
  for (const Pending* each : pending) {
    if (each->result != Result::kSuccess) {
      return ::testing::AssertionFailure()
             << "a request ended with " << static_cast<int>(each->result) << "\n"
             << take_log();
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace onebit::nccl_net::test
