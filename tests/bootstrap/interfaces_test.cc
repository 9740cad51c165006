// The choice of network interfaces, on made-up machines, and the list of this one.
#include "bootstrap/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onebit::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SocketAddress address(std::string_view text) {
  const auto found = resolve(text, 0, SocketFamily::kAny);
  EXPECT_TRUE(found.ok()) << text;
  return found.ok() ? found->front() : SocketAddress();
}

Interface on(std::string name, std::string_view text, int prefix, bool up = true) {
  return {std::move(name), address(text), up, prefix};
}

const std::vector<Interface>& machine() {
  static const std::vector<Interface> list{
      on("lo", "127.0.0.1", 8),          on("lo", "::1", 128),
      on("docker0", "172.17.0.1", 16),   on("br-ab12", "172.18.0.1", 16),
      on("virbr0", "192.168.122.1", 24), on("veth12", "10.9.0.1", 24),
      on("eth0", "10.0.0.5", 24),        on("eth0", "10.0.0.6", 24),
      on("eth0", "fd00::5", 64),         on("eth0", "fe80::5", 64),
      on("eth1", "10.0.1.5", 24),        on("eth10", "10.0.10.5", 24),
      on("ib0", "192.168.0.5", 20),      on("ib1", "192.168.16.5", 20, false),
      on("usb0", "169.254.3.5", 16),     on("e", "10.0.20.5", 24),
      on("v6only", "fd00:0:0:1::5", 64),
  };
  return list;
}

std::vector<std::string> choice(std::string_view pattern, std::string_view toward = "",
                                SocketFamily family = SocketFamily::kAny) {
  const auto chosen =
      choose_interfaces(machine(), pattern, family, toward.empty() ? SocketAddress() : address(toward));
  if (!chosen.ok()) return {chosen.status().message()};
  std::vector<std::string> words;
  for (const Interface& interface : *chosen) {
    words.push_back(interface.name + "=" + interface.address.host());
  }
  return words;
}

TEST(Interfaces, WithoutAPatternTakeIbFirstAndLeaveOutPrivateLinkLocalAndDownOnesAndLoopback) {
  EXPECT_THAT(choice(""), ElementsAre("ib0=192.168.0.5", "eth0=10.0.0.5", "eth1=10.0.1.5", "eth10=10.0.10.5",
                                      "e=10.0.20.5", "v6only=fd00:0:0:1::5"));
}

TEST(Interfaces, TheSubnetOfTheMasterComesFirst) {
  EXPECT_THAT(choice("", "10.0.1.77"), ElementsAre("eth1=10.0.1.5", "ib0=192.168.0.5", "eth0=10.0.0.5",
                                                   "eth10=10.0.10.5", "e=10.0.20.5", "v6only=fd00:0:0:1::5"));
  EXPECT_EQ("ib0=192.168.0.5", choice("", "192.168.15.254").front()) << "a prefix that ends inside a byte";
  EXPECT_EQ("eth1=10.0.1.5", choice("", "10.0.1.5").front()) << "the master is this machine";
}

TEST(Interfaces, TheMastersFamilyDecidesBetweenTheAddressesOfAnInterface) {
  EXPECT_THAT(choice("=eth0"), ElementsAre("eth0=10.0.0.5"));
  EXPECT_THAT(choice("=eth0", "fd00::99"), ElementsAre("eth0=fd00::5"));
  EXPECT_THAT(choice("=eth0", "2001:db8::1"), ElementsAre("eth0=fd00::5"));
  EXPECT_THAT(choice("=eth0", "8.8.8.8"), ElementsAre("eth0=10.0.0.5"));
}

TEST(Interfaces, LoopbackServesAMasterOnLoopbackOrAMachineWithNothingElse) {
  EXPECT_EQ("lo=127.0.0.1", choice("", "127.0.0.1").front());
  EXPECT_EQ("lo=127.0.0.1", choice("", "127.9.9.9").front());
  EXPECT_EQ("lo=::1", choice("", "::1").front());
  const std::vector<Interface> alone{on("lo", "127.0.0.1", 8), on("docker0", "172.17.0.1", 16)};
  const auto chosen = choose_interfaces(alone, "", SocketFamily::kAny, address("10.0.0.1"));
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(1U, chosen->size());
  EXPECT_EQ("lo", chosen->front().name);
}

TEST(Interfaces, APatternIsAListOfPrefixes) {
  EXPECT_THAT(choice("eth1"), ElementsAre("eth1=10.0.1.5", "eth10=10.0.10.5"));
  EXPECT_THAT(choice("ib,eth"),
              ElementsAre("ib0=192.168.0.5", "eth0=10.0.0.5", "eth1=10.0.1.5", "eth10=10.0.10.5"));
  EXPECT_THAT(choice("eth1,ib", "192.168.0.9"),
              ElementsAre("eth1=10.0.1.5", "eth10=10.0.10.5", "ib0=192.168.0.5"))
      << "in the order of the pattern, also when the master is elsewhere";
  EXPECT_THAT(choice("eth", "10.0.10.9"), ElementsAre("eth10=10.0.10.5", "eth0=10.0.0.5", "eth1=10.0.1.5"));
}

TEST(Interfaces, APatternOfOneCharacterCounts) {
  EXPECT_THAT(choice("i"), ElementsAre("ib0=192.168.0.5"));
  EXPECT_THAT(choice("=e"), ElementsAre("e=10.0.20.5"));
}

TEST(Interfaces, EqualsAsksForExactNames) {
  EXPECT_THAT(choice("=eth1"), ElementsAre("eth1=10.0.1.5"));
  EXPECT_THAT(choice("=eth10,eth0,"), ElementsAre("eth10=10.0.10.5", "eth0=10.0.0.5"));
  EXPECT_THAT(choice("=eth7,eth1"), ElementsAre("eth1=10.0.1.5")) << "one of them is enough";
}

TEST(Interfaces, CaretExcludesPrefixesAndCaretEqualsExactNames) {
  EXPECT_THAT(choice("^eth,v6"), ElementsAre("ib0=192.168.0.5", "e=10.0.20.5"));
  EXPECT_THAT(choice("^=eth1,ib0,v6only,e"), ElementsAre("eth0=10.0.0.5", "eth10=10.0.10.5"));
  EXPECT_THAT(choice("^e,ib,v"), ElementsAre("lo=127.0.0.1")) << "never docker0 unless asked for by name";
}

TEST(Interfaces, PrivateAndLinkLocalOnesServeWhenAskedForByName) {
  EXPECT_THAT(choice("docker0"), ElementsAre("docker0=172.17.0.1"));
  EXPECT_THAT(choice("veth"), ElementsAre("veth12=10.9.0.1"));
  EXPECT_THAT(choice("usb"), ElementsAre("usb0=169.254.3.5"));
  EXPECT_THAT(choice("lo,eth1"), ElementsAre("lo=127.0.0.1", "eth1=10.0.1.5", "eth10=10.0.10.5"));
}

TEST(Interfaces, TheFamilyLimitsTheChoice) {
  EXPECT_THAT(choice("", "", SocketFamily::kIPv6), ElementsAre("eth0=fd00::5", "v6only=fd00:0:0:1::5"));
  EXPECT_THAT(choice("", "::1", SocketFamily::kIPv6),
              ElementsAre("lo=::1", "eth0=fd00::5", "v6only=fd00:0:0:1::5"));
  EXPECT_THAT(choice("v6", "", SocketFamily::kIPv4).front(), HasSubstr("IPv4"));
}

TEST(Interfaces, AnErrorSaysWhatWasAskedForAndWhatThereIs) {
  EXPECT_THAT(choice("=eth"),
              ElementsAre(AllOf(HasSubstr("'=eth'"), HasSubstr("NCCL_SOCKET_IFNAME"),
                                HasSubstr("eth1 (10.0.1.5)"), HasSubstr("ib1 (192.168.16.5, down)"))));
  EXPECT_THAT(choice("ib1").front(), HasSubstr("leaves no usable interface"));
  EXPECT_THAT(choice("^=lo,eth0,eth1,eth10,ib0,e,v6only").front(), HasSubstr("leaves no usable interface"));
  EXPECT_FALSE(choose_interfaces({}, "", SocketFamily::kAny, SocketAddress()).ok());
}

TEST(Interfaces, ThisMachineHasALoopbackWithItsSubnet) {
  const auto all = system_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().message();
  const auto lo = std::find_if(all->begin(), all->end(), [](const Interface& interface) {
    return interface.address.is_loopback() && interface.address.family() == AF_INET;
  });
  ASSERT_NE(all->end(), lo);
  EXPECT_EQ("lo", lo->name);
  EXPECT_EQ(8, lo->prefix_length);
  EXPECT_TRUE(lo->up);
}

}  // namespace
}  // namespace onebit::bootstrap
