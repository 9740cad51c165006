// The plugin as NCCL's threads use it: for each communicator a service thread, which makes and closes the
// comms, and a progress thread, which uses them, while the service thread makes others; several communicators
// at once.
#include <gmock/gmock.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "net_pair.h"

namespace onebit::nccl_net::test {
namespace {

constexpr int kConnections = 4;  ///< of each rank to its peer, each way
constexpr std::size_t kDepth = 8;
constexpr std::uint32_t kMessages = 60;
constexpr std::size_t kBytes = 30'011;

/// A hand-over from one thread to another.
template <typename T>
class Channel {
 public:
  void put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  /// Nothing when none comes in time.
  std::optional<T> get(std::chrono::milliseconds limit = kLimit) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [&] { return !values_.empty(); })) return std::nullopt;
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  std::optional<T> poll() { return get(std::chrono::milliseconds(0)); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

using Handle = std::array<std::byte, abi::kHandleBytes>;

/// One direction of a connection at one rank, as its progress thread works on it.
class Stream {
 public:
  Stream(const Net& net, void* comm, bool sends, std::uint32_t seed) : net_(net), comm_(comm), sends_(sends) {
    for (std::uint32_t i = 0; i < kMessages; ++i) expected_.push_back(pattern(kBytes, seed + i));
    for (std::size_t i = 0; i < kDepth; ++i) buffers_.emplace_back(kBytes);
  }
  void* comm() const { return comm_; }
  bool sends() const { return sends_; }
  bool failed() const { return failed_; }
  bool done() const { return failed_ || ended_ == kMessages; }
  /// Posts one more, and tests only the oldest, as NCCL does.
  void step() {
    if (posted_ < kMessages && pending_.size() < kDepth) {
      void* request = nullptr;
      void* data = sends_ ? expected_[posted_].data() : buffers_[posted_ % kDepth].data();
      std::size_t size = kBytes;
      int tag = 0;
      void* mhandle = nullptr;
      const Result result =
          sends_ ? net_.isend(comm_, data, kBytes, 0, nullptr, &request)
                 : net_.irecv(comm_, {&data, 1}, {&size, 1}, {&tag, 1}, {&mhandle, 1}, &request);
      failed_ |= result != Result::kSuccess;
      if (request != nullptr) {
        pending_.emplace_back(net_, request);
        ++posted_;
      }
    }
    if (pending_.empty() || !pending_.front().poll()) return;
    failed_ |= pending_.front().result != Result::kSuccess;
    if (!sends_) failed_ |= buffers_[ended_ % kDepth] != expected_[ended_];
    pending_.pop_front();
    ++ended_;
  }

 private:
  const Net& net_;
  void* comm_;
  bool sends_;
  bool failed_ = false;
  std::uint32_t posted_ = 0, ended_ = 0;
  std::vector<std::vector<std::byte>> expected_, buffers_;
  std::deque<Pending> pending_;
};

/// One rank of a communicator of two.
class Rank {
 public:
  Rank(const Net& net, std::uint32_t number) : net_(net), number_(number) {}
  void start(Rank& peer) {
    progress_ = std::thread([this] { work(); });
    service_ = std::thread([this, &peer] { serve(peer); });
  }
  void join() {
    service_.join();
    progress_.join();
  }
  std::string failure() const { return failure_; }

 private:
  void serve(Rank& peer) {
    const Communicator communicator(net_);
    std::size_t given = 0;
    for (int i = 0; i < kConnections; ++i) {
      Handle mine{};
      void *listening = nullptr, *send = nullptr, *receive = nullptr;
      if (net_.listen(communicator.ctx(), 0, mine.data(), &listening) != Result::kSuccess)
        return fail("listen");
      peer.handles_.put(mine);
      auto theirs = handles_.get();
      if (!theirs) return fail("no handle from the peer");
      const bool made = until([&] {
        bool well = true;
        if (send == nullptr) {
          well &= net_.connect(communicator.ctx(), 0, theirs->data(), &send) == Result::kSuccess;
        }
        if (receive == nullptr) well &= net_.accept(listening, &receive) == Result::kSuccess;
        return !well || (send != nullptr && receive != nullptr);
      });
      net_.close_listen(listening);
      if (!made || send == nullptr || receive == nullptr) return fail("no connection");
      const auto place = static_cast<std::uint32_t>(i) * 1000;
      work_.put(std::make_unique<Stream>(net_, send, true, place + number_));
      work_.put(std::make_unique<Stream>(net_, receive, false, place + peer.number_));
      given += 2;
    }
    for (std::size_t i = 0; i < given; ++i) {
      auto ended = finished_.get();
      if (!ended) return fail("a stream does not come to its end");
      if ((*ended)->failed()) fail("a stream failed");
      (*ended)->sends() ? net_.close_send((*ended)->comm()) : net_.close_receive((*ended)->comm());
    }
    work_.put(nullptr);
  }
  void work() {
    std::vector<std::unique_ptr<Stream>> streams;
    const Deadline deadline = Deadline::after(2 * kLimit);
    for (bool more = true; more || !streams.empty();) {
      if (deadline.passed()) return;
      if (auto next = work_.poll()) {
        if (*next)
          streams.push_back(std::move(*next));
        else
          more = false;
      }
      for (auto& stream : streams) {
        stream->step();
        if (stream->done()) finished_.put(std::move(stream));
      }
      std::erase(streams, nullptr);
      std::this_thread::yield();
    }
  }
  /// From the service thread only.
  void fail(const std::string& what) {
    failure_ += what + "; ";
    work_.put(nullptr);
  }

  const Net& net_;
  const std::uint32_t number_;
  Channel<Handle> handles_;
  Channel<std::unique_ptr<Stream>> work_, finished_;
  std::string failure_;
  std::thread service_, progress_;
};

using Threads = EachVersion;
ONEBIT_EACH_VERSION(Threads);

TEST_P(Threads, ServiceAndProgressThreadsOfSeveralCommunicatorsWorkAtOnce) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t i = 0; i < 4; ++i) ranks.push_back(std::make_unique<Rank>(net, i * 100'000));
  for (std::size_t i = 0; i < 4; i += 2) {
    ranks[i]->start(*ranks[i + 1]);
    ranks[i + 1]->start(*ranks[i]);
  }
  for (auto& rank : ranks) rank->join();
  for (auto& rank : ranks) EXPECT_EQ(rank->failure(), "") << take_log();
}

TEST(Versions, OfTwoKindsWorkInOneProcessAtOnce) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const int version : {6, 12}) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      ranks.push_back(std::make_unique<Rank>(table_of(version), i * 100'000));
    }
  }
  for (std::size_t i = 0; i < 4; i += 2) {
    ranks[i]->start(*ranks[i + 1]);
    ranks[i + 1]->start(*ranks[i]);
  }
  for (auto& rank : ranks) rank->join();
  for (auto& rank : ranks) EXPECT_EQ(rank->failure(), "") << take_log();
}

TEST(Libraries, OfTwoFilesWorkInOneProcessAndWithEachOther) {
  const std::string copy = ::testing::TempDir() + "libnccl-net-copy-" + std::to_string(::getpid()) + ".so";
  std::filesystem::copy_file(library_file(), copy);
  const auto second = load_net_library(copy);
  std::filesystem::remove(copy);
  ASSERT_TRUE(second.ok()) << second.status().message();
  ASSERT_NE(second->back().get(), tables().back().get());
  Rank here(*tables().back(), 0), there(*second->back(), 100'000);
  here.start(there);
  there.start(here);
  here.join();
  there.join();
  EXPECT_EQ(here.failure(), "") << take_log();
  EXPECT_EQ(there.failure(), "") << take_log();
}

}  // namespace
}  // namespace onebit::nccl_net::test
