// What verbs decides without a device: the library, the ports, their addresses, and what peers may say.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/controlled_wire.h"
#include "transport/factory.h"
#include "transport/verbs/verbs_library.h"
#include "transport/verbs/verbs_memory.h"
#include "transport/verbs/verbs_ports.h"
#include "transport/verbs/verbs_wire.h"

namespace onebit::transport {
namespace {

using ::testing::HasSubstr;

ibv_gid gid(const char* text) {
  ibv_gid made{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, made.raw), 1) << text;
  return made;
}

VerbsPort port(const std::string& device, std::uint8_t number = 1, bool active = true) {
  VerbsPort made;
  made.device = device;
  made.number = number;
  made.active = active;
  made.ethernet = true;
  made.addresses = {{0, gid("fe80::1"), false},
                    {1, gid("fe80::1"), true},
                    {2, gid("::ffff:10.0.0.1"), false},
                    {3, gid("::ffff:10.0.0.1"), true},
                    {5, gid("fd00::1"), true}};
  return made;
}

std::string chosen(std::string_view pattern) {
  const std::vector<VerbsPort> all{port("mlx5_0"), port("mlx5_1"), port("mlx5_1", 2), port("mlx5_10"),
                                   port("rxe0", 1, false)};
  const auto ports = choose_ports(all, pattern);
  if (!ports.ok()) return ports.status().message();
  std::string names;
  for (const VerbsPort& each : *ports) names += each.name() + " ";
  return names;
}

TEST(VerbsLibrary, OneThatIsMissingIsAnErrorThatSaysWhatToInstall) {
  const auto opened = open_verbs_library("libibverbs-of-nobody.so.1");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("libibverbs-of-nobody.so.1"));
  EXPECT_THAT(opened.status().message(), HasSubstr("install libibverbs1"));
}

TEST(VerbsLibrary, OneWithoutTheFunctionsIsAnErrorThatNamesOne) {
  const auto opened = open_verbs_library("libm.so.6");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("libm.so.6 has no ibv_get_device_list"));
}

/// A stand-in for the one function: what it was called with.
struct DmaBufCall {
  std::uint64_t offset, address;
  std::size_t bytes;
  int fd, access;
} g_call;
ibv_mr g_region{};
int g_regions = 0;
VerbsLibrary library_with_dma_bufs() {
  VerbsLibrary made{};
  made.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t offset, std::size_t bytes, std::uint64_t address, int fd,
                          int access) {
    g_call = {offset, address, bytes, fd, access};
    ++g_regions;
    return &g_region;
  };
  made.dereg_mr = [](ibv_mr*) { return --g_regions >= 0 ? 0 : EINVAL; };
  return made;
}

TEST(VerbsMemory, ADmaBufIsRegisteredAtTheGpusAddressAndItsPartsNeedNothingMore) {
  const VerbsLibrary library = library_with_dma_bufs();
  RegisteredMemory memory(library, nullptr, "mlx5_0", true);
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const void*>(address); };
  {
    auto whole = memory.hold(at(0x7000'0000), 1 << 20, DmaBuf{5, 4096});
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(g_call.fd, 5);
    EXPECT_EQ(g_call.offset, 4096U);
    EXPECT_EQ(g_call.address, 0x7000'0000U);
    EXPECT_EQ(g_call.bytes, std::size_t{1} << 20);
    EXPECT_EQ(g_call.access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    // Another registration would call what the library does not have.
    auto part = memory.hold(at(0x7000'0000 + 1000), 1000, true);
    ASSERT_TRUE(part.ok());
    whole->reset();
    EXPECT_EQ(g_regions, 1) << "the part holds it";
  }
  EXPECT_EQ(g_regions, 0);
}

TEST(VerbsMemory, WithoutTheFunctionADmaBufIsAnErrorThatSaysWhatToInstall) {
  const VerbsLibrary old{};
  RegisteredMemory memory(old, nullptr, "mlx5_0", true);
  EXPECT_THAT(memory.hold(&g_region, 1, DmaBuf{5, 0}).status().message(),
              AllOf(HasSubstr("ibv_reg_dmabuf_mr"), HasSubstr("install libibverbs1")));
}

TEST(VerbsPorts, AreChosenByPrefixExactNameExclusionAndPort) {
  EXPECT_EQ(chosen(""), "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 ");
  EXPECT_EQ(chosen("mlx5_1"), "mlx5_1:1 mlx5_1:2 mlx5_10:1 ");
  EXPECT_EQ(chosen("=mlx5_1"), "mlx5_1:1 mlx5_1:2 ");
  EXPECT_EQ(chosen("=mlx5_1:2,mlx5_0"), "mlx5_1:2 mlx5_0:1 ");
  EXPECT_EQ(chosen("^mlx5_1"), "mlx5_0:1 ");
  EXPECT_EQ(chosen("^=mlx5_1:1,mlx5_10"), "mlx5_0:1 mlx5_1:2 ");
  EXPECT_EQ(chosen("=mlx5_0,mlx5_0:1"), "mlx5_0:1 ") << "each once";
}

TEST(VerbsPorts, NoneIsAnErrorThatListsWhatThereIs) {
  EXPECT_THAT(chosen("rxe0"), AllOf(HasSubstr("ONEBIT_IB_HCA=rxe0"), HasSubstr("rxe0:1 (down)")));
  EXPECT_THAT(choose_ports({}, "").status().message(), HasSubstr("no RDMA port is active (there are: none)"));
}

TEST(VerbsPorts, TheAddressIsTheOneAskedForOrTheBestOfRoCEv2) {
  EXPECT_EQ(choose_address(port("a"), -1, SocketFamily::kAny)->index, 3);
  EXPECT_EQ(choose_address(port("a"), -1, SocketFamily::kIPv6)->index, 5);
  EXPECT_EQ(choose_address(port("a"), 0, SocketFamily::kAny)->index, 0);
  const auto wrong = choose_address(port("a"), 4, SocketFamily::kAny);
  EXPECT_THAT(wrong.status().message(),
              AllOf(HasSubstr("index 4"), HasSubstr("ONEBIT_IB_GID_INDEX"), HasSubstr("3 = 10.0.0.1")));
  VerbsPort bare = port("a");
  bare.addresses.clear();
  EXPECT_THAT(choose_address(bare, -1, SocketFamily::kAny).status().message(), HasSubstr("no address"));
}

TEST(VerbsWire, WhatAPeerSaysComesThroughAndNothingElseDoes) {
  Introduction introduction;
  introduction.ports = {{gid("fd77::1"), 0, IBV_MTU_4096, true}, {gid("fd77::2"), 7, IBV_MTU_1024, false}};
  introduction.first_packet = 0x123456;
  introduction.sizes.slots = 7;
  introduction.pairs = {11, 12, 13};
  const std::vector<std::byte> users(64, std::byte{9});
  const auto bytes = encode_introduction(introduction);
  const auto hello = encode_hello(users, bytes);
  const auto split = split_hello(hello);
  ASSERT_TRUE(split.ok());
  EXPECT_TRUE(std::equal(users.begin(), users.end(), split->users.begin(), split->users.end()));
  const auto heard = decode_introduction(split->transports);
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(heard->pairs, introduction.pairs);
  EXPECT_EQ(heard->sizes.slots, 7U);
  ASSERT_EQ(heard->ports.size(), 2U);
  EXPECT_EQ(gid_text(heard->ports[0].gid), "fd77::1");
  EXPECT_EQ(gid_text(heard->ports[1].gid), "fd77::2");
  EXPECT_EQ(heard->ports[1].lid, 7U);
  EXPECT_EQ(heard->ports[1].mtu, IBV_MTU_1024);
  EXPECT_FALSE(heard->ports[1].ethernet);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_introduction(std::span(bytes).first(length)).ok()) << length;
  }
  for (std::size_t length = 0; length <= users.size(); ++length) {
    EXPECT_FALSE(split_hello(std::span(hello).first(length)).ok()) << length;
  }
  introduction.sizes.slots = 0;
  EXPECT_FALSE(decode_introduction(encode_introduction(introduction)).ok()) << "no room for a message";
  introduction.sizes.slots = 7;
  introduction.pairs = {11};
  EXPECT_FALSE(decode_introduction(encode_introduction(introduction)).ok()) << "no pair for data";
  introduction.pairs = {11, 12};
  introduction.ports.clear();
  EXPECT_FALSE(decode_introduction(encode_introduction(introduction)).ok()) << "no port";
}

TEST(VerbsWire, AMessageOfAnotherSizeThanItsKindHasIsRefused) {
  std::array<std::byte, 100> bytes{};
  MessageHeader header;
  EXPECT_NE(decode_message(bytes.data(), bytes.size(), header), nullptr) << "zeros";
  header.kind = MessageKind::kEager;
  header.tag = 7;
  EXPECT_EQ(encode_message(header, bytes.data()), kEagerHeaderBytes);
  MessageHeader decoded;
  EXPECT_EQ(decode_message(bytes.data(), 100, decoded), nullptr);
  EXPECT_EQ(decoded.bytes, 100 - kEagerHeaderBytes);
  EXPECT_EQ(decoded.tag, 7U);
  EXPECT_NE(decode_message(bytes.data(), 10, decoded), nullptr);
  header.kind = MessageKind::kAnnounce;
  header.bytes = 1000;
  EXPECT_EQ(encode_message(header, bytes.data()), kMessageHeaderBytes);
  EXPECT_EQ(decode_message(bytes.data(), kMessageHeaderBytes, decoded), nullptr);
  EXPECT_EQ(decoded.bytes, 1000U);
  EXPECT_NE(decode_message(bytes.data(), kMessageHeaderBytes - 1, decoded), nullptr);
  EXPECT_NE(decode_message(bytes.data(), kMessageHeaderBytes + 1, decoded), nullptr);
  bytes[2] = std::byte{77};
  EXPECT_NE(decode_message(bytes.data(), kMessageHeaderBytes, decoded), nullptr);
}

std::vector<std::byte> an_offer(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Choice, AutomaticIsVerbsWhereAllRanksReachEachOtherElseTcpAndSaysWhy) {
  const Settings settings;
  const auto on = an_offer("verbs\t1\tRoCE v2, IPv4\ntcp\t1\tIP\n");
  const auto off = an_offer("verbs\t0\tno RDMA port is active\ntcp\t1\tIP\n");
  const auto elsewhere = an_offer("verbs\t1\tInfiniBand, subnet fe80::\ntcp\t1\tIP\n");
  const auto choice = [&](const std::vector<std::vector<std::byte>>& offers) {
    const auto made = choose(settings, offers);
    return made.ok() ? made->transport + ": " + made->why : made.status().message();
  };
  EXPECT_EQ(choice({on, on, on}), "verbs: RoCE v2, IPv4");
  EXPECT_EQ(choice({on, off, on}), "tcp: not verbs (rank 1: no RDMA port is active); IP");
  EXPECT_EQ(choice({on, on, elsewhere}),
            "tcp: not verbs (rank 0 is on RoCE v2, IPv4, rank 2 on InfiniBand, subnet fe80::); IP");
  EXPECT_THAT(choice({on, an_offer("garbage")}), HasSubstr("no transport for all ranks"));
}

TEST(Choice, ANameThatNoTransportHasIsAnErrorThatSaysWhatThereIs) {
  Settings settings;
  settings.transport = "nccl";
  EXPECT_THAT(choose(settings).status().message(),
              AllOf(HasSubstr("ONEBIT_TRANSPORT=nccl"), HasSubstr("auto, verbs, tcp")));
}

TEST(Choice, ATransportThatIsAskedForAndNotThereIsAnErrorThatSaysWhatToSet) {
  Settings settings;
  settings.transport = "verbs";
  settings.ib_hca = "=nosuchdevice";
  const auto found = find_devices("verbs", settings, SocketAddress());
  EXPECT_THAT(found.status().message(), HasSubstr("or set ONEBIT_TRANSPORT=auto"));
  EXPECT_THAT(make_context("verbs", settings, SocketAddress()).status().message(),
              HasSubstr("or set ONEBIT_TRANSPORT=auto"));
}

}  // namespace
}  // namespace onebit::transport
