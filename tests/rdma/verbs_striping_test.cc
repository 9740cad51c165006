// Connections over several ports: all carry data, as much as each can, and one that goes down is named. In a
// VM with four devices: one end has rxe0 and rxe1, the other rxe2 and rxe3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "transport/factory.h"
#include "transport_pair.h"
#include "verbs_support.h"

namespace onebit::transport::test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLarge = 24UL << 20;
/// Packets of data for half of it, at the devices' largest.
constexpr std::uint64_t kHalfPackets = kLarge / 2 / 4096;

Variant two_ports(const std::function<void(Settings&)>& change = {}) {
  return verbs_variant("", change, "=rxe0,rxe1", "=rxe2,rxe3");
}

std::uint64_t sent_packets(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
  std::uint64_t count = 0;
  EXPECT_TRUE(file >> count) << device;
  return count;
}

/// Sends `kLarge` bytes from a to b; what rxe0 and rxe1 have sent for it.
std::array<std::uint64_t, 2> packets_of_a_large_message(Pair& pair) {
  const std::array<std::uint64_t, 2> before{sent_packets("rxe0"), sent_packets("rxe1")};
  const auto sent = pattern(kLarge, 1);
  std::vector<std::byte> received(sent.size());
  Request send;
  Request receive;
  EXPECT_TRUE(pair.b->receive(receive, received.data(), received.size(), 1, 0).ok());
  EXPECT_TRUE(pair.a->send(send, sent.data(), sent.size(), 1, 0).ok());
  EXPECT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }, std::chrono::seconds(120)));
  EXPECT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message();
  EXPECT_EQ(received, sent);
  return {sent_packets("rxe0") - before[0], sent_packets("rxe1") - before[1]};
}

TEST(VerbsStriping, BothPortsCarryALargeMessage) {
  Pair pair(two_ports());
  ASSERT_TRUE(pair.connected());
  const auto [first, second] = packets_of_a_large_message(pair);
  EXPECT_GT(first, kHalfPackets / 4);
  EXPECT_GT(second, kHalfPackets / 4);
  EXPECT_GE(first + second, 2 * kHalfPackets);
}

TEST(VerbsStriping, ASlowPortHasASmallerShare) {
  Pair pair(two_ports());
  ASSERT_TRUE(pair.connected());
  must("modprobe sch_netem && tc qdisc add dev veth1 root netem rate 20mbit limit 10000");
  const auto [first, second] = packets_of_a_large_message(pair);
  must("tc qdisc del dev veth1 root");
  EXPECT_LT(second, first / 2);
}

TEST(VerbsStriping, EndsWithDifferentNumbersOfPortsUseThoseThatBothHave) {
  Pair pair(verbs_variant("", {}, "=rxe0,rxe1", "=rxe2"));
  ASSERT_TRUE(pair.connected());
  expect_exchange(pair);
}

TEST(VerbsStriping, AMemoryIsRegisteredWithAllPorts) {
  Pair pair(two_ports());
  ASSERT_TRUE(pair.connected());
  auto sent = pattern(kLarge, 1);
  std::vector<std::byte> received(sent.size());
  auto of_sent = pair.context_a->register_memory(sent.data(), sent.size());
  auto of_received = pair.context_b->register_memory(received.data(), received.size());
  ASSERT_TRUE(of_sent.ok() && of_received.ok());
  Request send;
  Request receive;
  ASSERT_TRUE(pair.b->receive(receive, received.data(), received.size(), 1, 0, of_received->get()).ok());
  ASSERT_TRUE(pair.a->send(send, sent.data(), sent.size(), 1, 0, of_sent->get()).ok());
  ASSERT_TRUE(pair.drive([&] { return has_ended(send) && has_ended(receive); }));
  EXPECT_TRUE(is_done(send) && is_done(receive)) << pair.a->status().message();
  EXPECT_EQ(received, sent);
}

TEST(VerbsStriping, APortThatGoesDownEndsAllRequestsAndIsNamed) {
  Pair pair(two_ports([](Settings& s) {
    // 134 ms: where the emulated processors are busy, Soft-RoCE's answers on the other port take longer
    // than 17.
    s.ib_timeout = 15;
    s.ib_retries = 3;
  }));
  ASSERT_TRUE(pair.connected());
  const auto sent = pattern(64UL << 20, 1);
  std::vector<std::byte> received(sent.size());
  std::array<Request, 4> requests;
  ASSERT_TRUE(pair.b->receive(requests[0], received.data(), received.size(), 1, 0).ok());
  ASSERT_TRUE(pair.b->receive(requests[1], received.data(), 8, 2, 0).ok());
  ASSERT_TRUE(pair.a->send(requests[2], sent.data(), sent.size(), 1, 0).ok());
  ASSERT_TRUE(pair.a->receive(requests[3], received.data(), 8, 2, 0).ok());
  ASSERT_TRUE(pair.drive([&] { return pair.b->counters().payload_received > 2'000'000; }));
  const PulledCable pulled;
  ASSERT_TRUE(pair.drive([&] { return std::all_of(requests.begin(), requests.end(), has_ended); }));
  EXPECT_TRUE(std::all_of(requests.begin(), requests.end(), is_failed));
  EXPECT_THAT(pair.a->status().message(),
              AllOf(HasSubstr(pair.a->peer()), HasSubstr("no answer over rxe1:1")));
  EXPECT_THAT(pair.b->status().message(), HasSubstr("no answer over rxe1:1")) << "it is told why";
}

TEST(VerbsStriping, WhatTheSettingsNameIsOneDeviceForARankAndSeveralForThePlugin) {
  const auto context = make_context("verbs", on("=rxe1,rxe0"), SocketAddress());
  ASSERT_TRUE(context.ok()) << context.status().message();
  ASSERT_EQ((*context)->devices().size(), 1U);
  EXPECT_EQ((*context)->devices().front().name, "rxe1:1+rxe0:1");
  const auto devices = find_devices("verbs", on("=rxe1,rxe0"), SocketAddress());
  ASSERT_TRUE(devices.ok());
  EXPECT_EQ(devices->size(), 2U);
  const auto unnamed = make_context("verbs", on(""), SocketAddress());
  ASSERT_TRUE(unnamed.ok());
  EXPECT_TRUE((*unnamed)->devices().front().members.empty());
}

}  // namespace
}  // namespace onebit::transport::test
