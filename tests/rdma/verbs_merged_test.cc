// The net plugin over verbs: a device that NCCL has merged of two ports uses both, and a single one its own.
// In the VM (vm), with ONEBIT_TRANSPORT=verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "net_pair.h"

namespace onebit::nccl_net::test {
namespace {

std::uint64_t sent_packets(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
  std::uint64_t count = 0;
  EXPECT_TRUE(file >> count) << device;
  return count;
}

constexpr std::size_t kBytes = 8 << 20;
constexpr std::uint64_t kPackets = kBytes / 4096;

/// What rxe0 and rxe1 have sent for a message over this device.
std::array<std::uint64_t, 2> packets_over(int device, const Communicator& a, const Communicator& b) {
  const Net& net = a.net();
  const Connection line(a, b, device);
  EXPECT_TRUE(line.made());
  const std::array<std::uint64_t, 2> before{sent_packets("rxe0"), sent_packets("rxe1")};
  const auto sent = pattern(kBytes, 1);
  std::vector<std::byte> received(kBytes);
  Pending receiving(net, line.receive(received.data(), kBytes));
  Pending sending(net, line.send(sent.data(), kBytes));
  EXPECT_TRUE(complete({&receiving, &sending}));
  EXPECT_EQ(received, sent);
  return {sent_packets("rxe0") - before[0], sent_packets("rxe1") - before[1]};
}

class Merged : public EachVersion {};
ONEBIT_VERSIONS(Merged, 9, 12);

TEST_P(Merged, DevicesOfTwoPortsUseBoth) {
  const Communicator a(net), b(net);
  int merged = -1;
  ASSERT_EQ(net.make_virtual_device(std::array{0, 1}, merged), Result::kSuccess);
  NetProperties device;
  ASSERT_EQ(net.properties(merged, device), Result::kSuccess);
  EXPECT_EQ(device.name, "rxe0:1+rxe1:1");
  const auto [first, second] = packets_over(merged, a, b);
  EXPECT_GT(first, kPackets / 4);
  EXPECT_GT(second, kPackets / 4);
}

TEST_P(Merged, ASingleDeviceUsesItsPortOnly) {
  const Communicator a(net), b(net);
  const auto [first, second] = packets_over(1, a, b);
  EXPECT_EQ(first, 0U);
  EXPECT_GE(second, kPackets);
}

}  // namespace
}  // namespace onebit::nccl_net::test
