// The schedule alone: all ranks in one thread, messages delivered and computations run in random orders. It
// always ends, uses no slot before it is free, and needs no more of the network than that a matched message
// arrives.

#include "collective/schedule.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace onebit::collective {
namespace {

using onebit::testing::Random;
using transport::Request;

/// One end of a connection in memory. Messages wait in the order of sending until the head's tag is posted at
/// the other end.
class FakeEndpoint final : public transport::Endpoint {
 public:
  FakeEndpoint* other = nullptr;
  std::deque<Request*> sends, receives;
  std::vector<Request*>* completed = nullptr;

  State state() const override { return State::kReady; }
  const Status& status() const override { return ok_; }
  std::string peer() const override { return "memory"; }
  std::span<const std::byte> hello() const override { return {}; }
  Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag, std::uint32_t check,
              transport::Memory* /*memory*/) override {
    request.data = static_cast<std::byte*>(const_cast<void*>(data));
    request.bytes = bytes;
    return post(request, tag, check, sends);
  }
  Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check,
                 transport::Memory* /*memory*/) override {
    request.data = static_cast<std::byte*>(data);
    request.capacity = capacity;
    return post(request, tag, check, receives);
  }
  void finish() override {}
  bool closed() const override { return true; }
  std::optional<transport::WaitingMessage> waiting_message() const override { return std::nullopt; }
  void abort(const Status& /*reason*/) noexcept override {}
  transport::Counters counters() const override { return {}; }

  /// Moves this end's first message to the other, if a receive there has its tag.
  bool deliver() {
    if (sends.empty()) return false;
    Request& out = *sends.front();
    for (auto at = other->receives.begin(); at != other->receives.end(); ++at) {
      Request& in = **at;
      if (in.tag != out.tag) continue;
      EXPECT_EQ(in.check, out.check);
      EXPECT_LE(out.bytes, in.capacity);
      std::memcpy(in.data, out.data, out.bytes);
      in.bytes = out.bytes;
      other->receives.erase(at);
      sends.pop_front();
      in.state = out.state = Request::State::kDone;
      completed->push_back(&out);
      other->completed->push_back(&in);
      return true;
    }
    return false;
  }

 private:
  static Status post(Request& request, std::uint64_t tag, std::uint32_t check, std::deque<Request*>& queue) {
    request.state = Request::State::kPending;
    request.tag = tag;
    request.check = check;
    queue.push_back(&request);
    return Status();
  }
  Status ok_;
};

/// Pieces and results are one number each, in slots that are used again after `depth` chunks, as in the real
/// stages.
class NumberStages final : public Stages {
 public:
  NumberStages(std::size_t rank, std::size_t ranks, std::size_t chunks, std::size_t depth, bool at_end)
      : rank_(rank),
        ranks_(ranks),
        depth_(depth),
        at_end_(at_end),
        out_(ranks * depth),
        in_(ranks * depth),
        results_(ranks * depth),
        sums_(chunks),
        consumed_(ranks * chunks) {}

  static std::uint64_t piece_of(std::size_t rank, std::size_t owner, std::size_t chunk) {
    return 1 + rank + 100 * owner + 10'000 * chunk;
  }

  Status prepare(std::size_t owner, std::size_t chunk) override {
    slot(out_, owner, chunk) = piece_of(rank_, owner, chunk);
    return Status();
  }
  std::span<const std::byte> piece(std::size_t owner, std::size_t chunk) override {
    return bytes(out_, owner, chunk);
  }
  std::span<std::byte> piece_slot(std::size_t from, std::size_t chunk) override {
    return bytes(in_, from, chunk);
  }
  Status reduce(std::size_t chunk) override {
    for (std::size_t from = 0; from < ranks_; ++from) {
      const std::uint64_t got = slot(from == rank_ ? out_ : in_, from, chunk);
      EXPECT_EQ(got, piece_of(from, rank_, chunk))
          << "piece of " << from << " for chunk " << chunk << " of " << rank_;
      sums_[chunk] += got;
    }
    return at_end_ ? Status() : write_result(chunk);
  }
  Status finish_reduction() override {
    EXPECT_FALSE(finished_);
    finished_ = true;
    return Status();
  }
  Status emit(std::size_t chunk) override {
    EXPECT_TRUE(finished_);
    return write_result(chunk);
  }
  std::span<const std::byte> result(std::size_t chunk) override { return bytes(results_, rank_, chunk); }
  std::span<std::byte> result_slot(std::size_t owner, std::size_t chunk) override {
    return bytes(results_, owner, chunk);
  }
  Status consume(std::size_t owner, std::size_t chunk) override {
    std::uint64_t due = 0;
    for (std::size_t r = 0; r < ranks_; ++r) due += piece_of(r, owner, chunk);
    EXPECT_EQ(slot(results_, owner, chunk), due) << "result " << chunk << " of " << owner << " at " << rank_;
    ++consumed_[owner * sums_.size() + chunk];
    return Status();
  }
  bool emits_at_end() const override { return at_end_; }
  bool all_consumed_once() const {
    for (const int each : consumed_) {
      if (each != 1) return false;
    }
    return true;
  }

 private:
  using Slots = std::vector<std::uint64_t>;
  std::uint64_t& slot(Slots& slots, std::size_t rank, std::size_t chunk) {
    return slots[rank * depth_ + chunk % depth_];
  }
  std::span<std::byte> bytes(Slots& slots, std::size_t rank, std::size_t chunk) {
    return std::as_writable_bytes(std::span(&slot(slots, rank, chunk), 1));
  }
  Status write_result(std::size_t chunk) {
    slot(results_, rank_, chunk) = sums_[chunk];
    return Status();
  }
  std::size_t rank_, ranks_, depth_;
  bool at_end_;
  bool finished_ = false;
  Slots out_, in_, results_, sums_;
  std::vector<int> consumed_;
};

struct Member {
  std::vector<FakeEndpoint> ends;
  std::vector<transport::Endpoint*> pointers;
  std::vector<Request*> completed;
  std::unique_ptr<NumberStages> stages;
  std::unique_ptr<Schedule> schedule;
};

/// Runs all ranks to the end in an order drawn from `seed`; a rank with `slow` set moves only when nobody
/// else can.
void run(std::size_t ranks, std::size_t chunks, std::size_t depth, bool at_end, std::uint64_t seed,
         bool slow) {
  std::vector<Member> all(ranks);
  for (Member& m : all) m.ends.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    Member& m = all[r];
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      m.ends[peer].other = &all[peer].ends[r];
      m.ends[peer].completed = &m.completed;
      m.pointers.push_back(peer == r ? nullptr : &m.ends[peer]);
    }
    Peers peers;
    peers.rank = r;
    peers.endpoints = m.pointers;
    peers.operation = 7;
    peers.check = 9;
    m.stages = std::make_unique<NumberStages>(r, ranks, chunks, depth, at_end);
    m.schedule = std::make_unique<Schedule>(*m.stages, peers, chunks, depth);
  }
  for (Member& m : all) ASSERT_TRUE(m.schedule->start().ok());
  Random random(seed);
  // One step of one rank: deliver a message that it has sent, hand it what has completed, or compute.
  const auto step = [&](Member& m) {
    const std::uint64_t first = random.bits();
    for (std::uint64_t i = 0; i < 3; ++i) {
      const std::uint64_t kind = (first + i) % 3;
      if (kind == 0 && !m.completed.empty()) {
        const std::size_t pick = random.bits() % m.completed.size();
        Request* const request = m.completed[pick];
        m.completed.erase(m.completed.begin() + static_cast<std::ptrdiff_t>(pick));
        EXPECT_TRUE(m.schedule->on_request(*request).ok());
        return true;
      }
      if (kind == 1) {
        const auto computed = m.schedule->compute_one();
        EXPECT_TRUE(computed.ok());
        if (computed.ok() && *computed) return true;
      }
      if (kind == 2) {
        const std::size_t from = random.bits() % ranks;
        for (std::size_t e = 0; e < ranks; ++e) {
          if (m.ends[(from + e) % ranks].deliver()) return true;
        }
      }
    }
    return false;
  };
  for (;;) {
    const std::size_t from = random.bits() % ranks;
    bool moved = false;
    for (std::size_t i = 0; i < ranks && !moved; ++i) {
      const std::size_t r = (from + i) % ranks;
      if (!(slow && r == 0)) moved = step(all[r]);
    }
    if (!moved) moved = step(all[0]);
    if (::testing::Test::HasFailure() || !moved) break;
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    ASSERT_TRUE(all[r].schedule->done()) << "rank " << r << " is stuck";
    ASSERT_TRUE(all[r].stages->all_consumed_once());
    EXPECT_TRUE(all[r].schedule->waiting_for().empty());
  }
}

TEST(Schedule, EndsInEveryOrderOfEvents) {
  for (const std::size_t ranks : {2, 3, 5}) {
    for (const std::size_t chunks : {1, 2, 7, 20}) {
      for (const std::size_t depth : {1, 2, 4, 64}) {
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          SCOPED_TRACE(formatted("{} ranks, {} chunks, depth {}, seed {}", ranks, chunks, depth, seed));
          run(ranks, chunks, depth, false, seed, seed % 2 == 0);
          if (HasFatalFailure() || HasFailure()) return;
        }
      }
    }
  }
}

TEST(Schedule, EndsWhenResultsComeOnlyAfterAllPieces) {
  for (const std::size_t ranks : {2, 3, 5}) {
    for (const std::size_t chunks : {1, 2, 9}) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(formatted("{} ranks, {} chunks, seed {}", ranks, chunks, seed));
        run(ranks, chunks, chunks, true, seed, seed % 2 == 0);
        if (HasFatalFailure() || HasFailure()) return;
      }
    }
  }
}

TEST(Schedule, OfOneRankNeedsNobody) {
  run(1, 5, 2, false, 1, false);
}

}  // namespace
}  // namespace onebit::collective
