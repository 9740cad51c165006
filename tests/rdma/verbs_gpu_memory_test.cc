// Connections whose messages may lie in the memory of GPUs, on memory of the host: there is no GPU here, and
// Soft-RoCE takes no dma-bufs. In the VM (vm).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_wire.h"
#include "verbs_support.h"

namespace onebit::transport::test {
namespace {

using ::testing::HasSubstr;

/// As on a machine whose devices take them.
Variant with_gpus(const std::string& first, const std::string& second) {
  Variant made = verbs_variant("", {}, first, second);
  made.make = [of_ports = made.make](const Settings& settings) -> Result<std::unique_ptr<Context>> {
    ONEBIT_ASSIGN_OR_RETURN(const auto context, of_ports(settings));
    std::vector<Device> devices(context->devices().begin(), context->devices().end());
    for (Device& device : devices) device.takes_dma_bufs = true;
    return make_verbs_context(settings, std::move(devices));
  };
  return made;
}

TEST(VerbsGpuMemory, NoProcessorTouchesTheBytesOfASmallMessage) {
  Pair pair(with_gpus("=rxe0", "=rxe1"));
  ASSERT_TRUE(pair.connected());
  for (const std::size_t bytes : {0, 1, 8, 5000}) {
    SCOPED_TRACE(bytes);
    const auto sent = pattern(bytes, 1);
    std::vector<std::byte> received(bytes);
    const std::uint64_t before = pair.a->counters().wire_sent;
    Request send;
    Request receive;
    ASSERT_TRUE(pair.b->receive(receive, received.data(), bytes, 1, 0).ok());
    ASSERT_TRUE(pair.a->send(send, sent.data(), bytes, 1, 0).ok());
    ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
    ASSERT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message();
    EXPECT_EQ(received, sent);
    EXPECT_EQ(pair.a->counters().wire_sent - before,
              bytes == 0 ? kEagerHeaderBytes : kMessageHeaderBytes + bytes)
        << "announced, then written";
  }
}

TEST(VerbsGpuMemory, OneEndWithGpusIsEnoughForThat) {
  Pair pair(with_gpus("=rxe0", "=rxe1"));
  ASSERT_TRUE(pair.connected());
  const auto plain = make(verbs_variant("", {}, "=rxe0", "=rxe0"));
  auto endpoint = plain->connect(0, pair.listener->handle(), {});
  ASSERT_TRUE(endpoint.ok());
  std::unique_ptr<Endpoint> accepted;
  const auto both = {plain.get(), pair.context_b.get()};
  ASSERT_TRUE(drive(both, [&] {
    auto next = pair.listener->accept();
    if (next.ok() && *next) accepted = std::move(*next);
    return accepted && (*endpoint)->state() == Endpoint::State::kReady;
  }));
  std::uint64_t value = 7;
  Request send;
  Request receive;
  std::uint64_t got = 0;
  ASSERT_TRUE(accepted->receive(receive, &got, sizeof got, 1, 0).ok());
  ASSERT_TRUE((*endpoint)->send(send, &value, sizeof value, 1, 0).ok());
  ASSERT_TRUE(drive(both, [&] { return has_ended(send) && has_ended(receive); }));
  EXPECT_EQ(got, value);
  EXPECT_EQ((*endpoint)->counters().wire_sent, kMessageHeaderBytes + sizeof value);
}

TEST(VerbsGpuMemory, FlushesComeBackThroughEveryPortInOrder) {
  Pair pair(with_gpus("=rxe0,rxe1", "=rxe1,rxe0"));
  ASSERT_TRUE(pair.connected());
  std::vector<std::byte> data(1 << 20);
  auto memory = pair.context_b->register_memory(data.data(), data.size());
  ASSERT_TRUE(memory.ok());
  std::array<Request, 5> flushes;
  for (std::size_t i = 0; i < flushes.size(); ++i) {
    // The last ones without a memory: it is registered for as long as it takes.
    Memory* const of = i < 3 ? memory->get() : nullptr;
    ASSERT_TRUE(pair.b->flush(flushes[i], data.data() + 1000 * i, 1000, of).ok());
  }
  ASSERT_TRUE(pair.drive([&] { return std::all_of(flushes.begin(), flushes.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(flushes.begin(), flushes.end(), is_done)) << pair.b->status().message();
  expect_exchange(pair);
}

TEST(VerbsGpuMemory, AFlushUnderWayEndsWithItsConnection) {
  Pair pair(with_gpus("=rxe0", "=rxe1"));
  ASSERT_TRUE(pair.connected());
  std::uint64_t value = 0;
  Request flush;
  ASSERT_TRUE(pair.b->flush(flush, &value, sizeof value).ok());
  pair.b->abort(Status(Code::kAborted, "enough"));
  EXPECT_TRUE(is_failed(flush));
}

TEST(VerbsGpuMemory, TheHostsNeedsNoFlush) {
  Pair pair(verbs_variant(""));
  ASSERT_TRUE(pair.connected());
  std::uint64_t value = 0;
  Request flush;
  ASSERT_TRUE(pair.b->flush(flush, &value, sizeof value).ok());
  EXPECT_TRUE(is_done(flush));
}

TEST(VerbsGpuMemory, ADeviceThatTakesNoDmaBufsSaysSoAndIsNotOfferedForThem) {
  const auto devices = verbs_devices(on("=rxe0"), SocketAddress());
  ASSERT_TRUE(devices.ok());
  EXPECT_FALSE(devices->front().takes_dma_bufs);
  EXPECT_FALSE(devices->front().takes_peer_memory);
  Pair pair(verbs_variant(""));
  ASSERT_TRUE(pair.connected());
  std::uint64_t value = 0;
  const auto refused = pair.context_a->register_dma_buf(&value, sizeof value, {0, 0});
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("8 bytes of a dma-buf"), HasSubstr("with rxe")));
}

}  // namespace
}  // namespace onebit::transport::test
