// Machines with many interfaces, with some that go away, and devices that are merged: in a namespace of the
// test's own. Needs root and iproute2.
#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "bootstrap/interfaces.h"
#include "net_pair.h"
#include "support/child.h"
#include "transport/tcp/tcp_handle.h"

namespace onebit::nccl_net::test {
namespace {

using onebit::testing::Child;

using Handle = std::array<std::byte, abi::kHandleBytes>;

bool ip(const std::string& words) {
  return std::system(("PATH=/usr/sbin:/sbin:$PATH ip " + words).c_str()) == 0;
}

/// Interfaces e0, e1 ... with addresses 10.60.0.1, 10.60.1.1 ... in a new namespace; all that is not named so
/// is left out.
bool make_interfaces(int count) {
  if (::unshare(CLONE_NEWNET) != 0 || !ip("link set lo up")) return false;
  for (int i = 0; i < count; i += 2) {
    const std::string a = "e" + std::to_string(i), b = "e" + std::to_string(i + 1);
    if (!ip("link add " + a + " type veth peer name " + b)) return false;
    for (int j = i; j < i + 2; ++j) {
      const std::string name = "e" + std::to_string(j);
      if (!ip("addr add 10.60." + std::to_string(j) + ".1/24 dev " + name) ||
          !ip("link set " + name + " up")) {
        return false;
      }
    }
  }
  ::setenv("NCCL_SOCKET_IFNAME", "e", 1);
  return until([&] {  // the kernel takes a moment to say that they run
    const auto all = bootstrap::system_interfaces();
    return all.ok() && std::count_if(all->begin(), all->end(), [](const bootstrap::Interface& interface) {
                         return interface.up && interface.address.family() == AF_INET;
                       }) == count + 1;
  });
}

int exchange(const Connection& line) {
  const auto sent = pattern(3'000'001, 5);
  std::vector<std::byte> got(sent.size());
  if (!line.made()) return 1;
  Pending receiving(line.net, line.receive(got.data(), got.size()));
  Pending sending(line.net, line.send(sent.data(), sent.size()));
  if (!complete({&sending, &receiving})) return 2;
  return got == sent ? 0 : 3;
}

/// Local ports of the established connections of this namespace.
std::multiset<int> connected_ports() {
  std::multiset<int> ports;
  std::ifstream file("/proc/self/net/tcp");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    unsigned port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %*8x:%x %*8x:%*x %x", &port, &state) == 2 && state == 1) {
      ports.insert(static_cast<int>(port));
    }
  }
  return ports;
}

struct Interfaces : EachVersion {
  /// Runs in a process, and so in a namespace, of its own.
  void in_child(const std::function<int()>& body) {
    Child child([&] {
      const int status = body();
      const std::string log = take_log();
      if (status != 0) ::write(2, log.data(), log.size());
      return status;
    });
    const int status = child.wait();
    if (status == 77) GTEST_SKIP() << "cannot make a namespace with interfaces: needs root and iproute2";
    EXPECT_EQ(status, 0);
  }
};
ONEBIT_EACH_VERSION(Interfaces);
using MergedInterfaces = Interfaces;
ONEBIT_VERSIONS(MergedInterfaces, 9, 12);  // before, there is no makeVDevice

TEST_P(Interfaces, MoreThanSixteenAreADeviceEach) {
  in_child([&] {
    if (!make_interfaces(20)) return 77;
    const Communicator a(net), b(net);
    int count = 0;
    if (net.devices(count) != Result::kSuccess || count != 20) return 1;
    std::set<std::string> names;
    for (int dev = 0; dev < count; ++dev) {
      NetProperties device;
      if (net.properties(dev, device) != Result::kSuccess) return 2;
      names.insert(device.name);
    }
    if (names.size() != 20) return 3;
    return exchange(Connection(a, b, 17));
  });
}

TEST_P(Interfaces, OneThatDisappearsIsAnErrorThatNamesItAndTheOthersGoOn) {
  in_child([&] {
    if (!make_interfaces(4)) return 77;
    const Communicator a(net), b(net);
    const Connection before(a, b, 0);
    int gone = -1;
    for (int dev = 0; dev < 4; ++dev) {
      NetProperties device;
      if (net.properties(dev, device) == Result::kSuccess && device.name == "e2") gone = dev;
    }
    Handle handle{};
    void *listening = nullptr, *send = nullptr;
    if (net.listen(b.ctx(), 0, handle.data(), &listening) != Result::kSuccess) return 1;
    if (!ip("link del e2")) return 77;
    take_log();
    void* none = nullptr;
    if (net.connect(a.ctx(), gone, handle.data(), &send) != Result::kSystemError) return 2;
    if (net.listen(b.ctx(), gone, handle.data(), &none) != Result::kSystemError || none != nullptr) return 3;
    const std::string log = take_log();
    if (log.find("e2") == std::string::npos || log.find("10.60.2.1") == std::string::npos) return 4;
    net.close_listen(listening);
    if (const int status = exchange(before); status != 0) return 10 + status;
    return exchange(Connection(a, b, 0));
  });
}

TEST_P(MergedInterfaces, AreOneDeviceThatStripesOverAll) {
  in_child([&] {
    if (!make_interfaces(4)) return 77;
    ::setenv("ONEBIT_NET_SPEED", "5000", 1);
    const Communicator a(net), b(net);
    const std::array<int, 3> members{0, 1, 3};
    int merged = -1, again = -1, count = 0;
    if (net.make_virtual_device(members, merged) != Result::kSuccess || merged != 4) return 1;
    if (net.make_virtual_device(members, again) != Result::kSuccess || again != merged) return 2;
    if (net.devices(count) != Result::kSuccess || count != 5) return 3;
    std::string name;
    NetProperties device;
    for (const int member : members) {
      if (net.properties(member, device) != Result::kSuccess) return 4;
      name += (name.empty() ? "" : "+") + device.name;
    }
    if (net.properties(merged, device) != Result::kSuccess || device.name != name) return 5;
    if (device.members != std::vector<int>(members.begin(), members.end()) || device.speed != 15'000)
      return 5;
    Handle handle{};
    void *listening = nullptr, *send = nullptr, *receive = nullptr;
    if (net.listen(b.ctx(), merged, handle.data(), &listening) != Result::kSuccess) return 7;
    transport::Handle inner;
    std::memcpy(&inner, handle.data(), sizeof inner);
    const auto contents = transport::decode_handle(inner);
    if (!contents.ok() || contents->addresses.size() != 3) return 8;
    if (!until([&] {
          if (send == nullptr) net.connect(a.ctx(), merged, handle.data(), &send);
          if (receive == nullptr) net.accept(listening, &receive);
          return send != nullptr && receive != nullptr;
        })) {
      return 9;
    }
    const auto ports = connected_ports();
    for (const SocketAddress& address : contents->addresses) {
      if (ports.count(address.port()) != 1) return 10;
    }
    net.close_send(send);
    net.close_receive(receive);
    net.close_listen(listening);
    if (const int status = exchange(Connection(a, b, merged)); status != 0) return 20 + status;
    // What cannot be merged.
    int none = -1;
    for (const std::vector<int>& wrong : {std::vector<int>{0, 0}, {0, 9}, {0, merged}, {-1, 0}}) {
      if (net.make_virtual_device(wrong, none) != Result::kInvalidArgument) return 30;
    }
    return 0;
  });
}

}  // namespace
}  // namespace onebit::nccl_net::test
