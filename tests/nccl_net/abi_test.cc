// The layouts of NCCL's net plugin ABI, number by number, as NCCL's public headers have them; and our tables.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <set>

#include "net_pair.h"

namespace onebit::nccl_net::test {
namespace {

TEST(Abi, PropertiesHaveTheSizesAndOffsetsOfNccl) {
  EXPECT_EQ(sizeof(abi::PropertiesV6), 48U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, guid), 16U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, ptrSupport), 24U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, speed), 28U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, port), 32U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, latency), 36U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, maxComms), 40U);
  EXPECT_EQ(offsetof(abi::PropertiesV6, maxRecvs), 44U);

  EXPECT_EQ(sizeof(abi::PropertiesV7), 56U);
  EXPECT_EQ(offsetof(abi::PropertiesV7, maxRecvs), 44U);
  EXPECT_EQ(offsetof(abi::PropertiesV7, netDeviceType), 48U);
  EXPECT_EQ(offsetof(abi::PropertiesV7, netDeviceVersion), 52U);

  EXPECT_EQ(sizeof(abi::PropertiesV8), 64U);
  EXPECT_EQ(offsetof(abi::PropertiesV8, regIsGlobal), 28U);
  EXPECT_EQ(offsetof(abi::PropertiesV8, speed), 32U);
  EXPECT_EQ(offsetof(abi::PropertiesV8, maxRecvs), 48U);
  EXPECT_EQ(offsetof(abi::PropertiesV8, netDeviceType), 52U);
  EXPECT_EQ(offsetof(abi::PropertiesV8, netDeviceVersion), 56U);

  EXPECT_EQ(sizeof(abi::PropertiesV9), 104U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, regIsGlobal), 28U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, forceFlush), 32U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, speed), 36U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, maxRecvs), 52U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, netDeviceType), 56U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, vProps), 64U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, vProps.devs), 68U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, maxP2pBytes), 88U);
  EXPECT_EQ(offsetof(abi::PropertiesV9, maxCollBytes), 96U);

  EXPECT_EQ(sizeof(abi::PropertiesV11), 112U);
  EXPECT_EQ(offsetof(abi::PropertiesV11, maxCollBytes), 96U);
  EXPECT_EQ(offsetof(abi::PropertiesV11, maxMultiRequestSize), 104U);

  EXPECT_EQ(sizeof(abi::PropertiesV12), 128U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, vProps), 64U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, maxP2pBytes), 104U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, maxCollBytes), 112U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, maxMultiRequestSize), 120U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, railId), 124U);
  EXPECT_EQ(offsetof(abi::PropertiesV12, planeId), 126U);

  EXPECT_EQ(sizeof(abi::VirtualDevice<4>), 20U);
  EXPECT_EQ(sizeof(abi::VirtualDevice<8>), 36U);
  EXPECT_EQ(sizeof(abi::Attributes), 44U);
  EXPECT_EQ(sizeof(abi::Config), 4U);
  EXPECT_EQ(sizeof(abi::Result), 4U);
}

TEST(Abi, TablesHaveTheSizesAndOrderOfNccl) {
  EXPECT_EQ(sizeof(abi::TableV6), 136U);
  EXPECT_EQ(sizeof(abi::TableV7), 152U);
  EXPECT_EQ(sizeof(abi::TableV8), 152U);
  EXPECT_EQ(sizeof(abi::TableV9), 160U);
  EXPECT_EQ(sizeof(abi::TableV10), 160U);
  EXPECT_EQ(sizeof(abi::TableV11), 176U);
  EXPECT_EQ(sizeof(abi::TableV12), 176U);
  EXPECT_EQ(offsetof(abi::TableV6, getProperties), 24U);
  EXPECT_EQ(offsetof(abi::TableV6, accept), 48U);
  EXPECT_EQ(offsetof(abi::TableV6, isend), 80U);
  EXPECT_EQ(offsetof(abi::TableV6, test), 104U);
  EXPECT_EQ(offsetof(abi::TableV6, closeListen), 128U);
  EXPECT_EQ(offsetof(abi::TableV8, irecvConsumed), 144U);
  EXPECT_EQ(offsetof(abi::TableV10, makeVDevice), 152U);
  EXPECT_EQ(offsetof(abi::TableV11, finalize), 160U);
  EXPECT_EQ(offsetof(abi::TableV12, setNetAttr), 168U);
}

using Tables = EachVersion;
ONEBIT_EACH_VERSION(Tables);

TEST_P(Tables, AreCompleteAndNamed) {
  EXPECT_THAT(net.missing_entries(), ::testing::IsEmpty());
  EXPECT_EQ(net.name(), "onebit");
}

TEST_P(Tables, FillEveryPropertyOfEveryDevice) {
  const Communicator communicator(net);
  int count = 0;
  ASSERT_EQ(net.devices(count), Result::kSuccess);
  ASSERT_GE(count, 1);
  std::set<std::uint64_t> guids;
  for (int dev = 0; dev < count; ++dev) {
    NetProperties device;
    ASSERT_EQ(net.properties(dev, device), Result::kSuccess);
    EXPECT_FALSE(device.name.empty());
    EXPECT_EQ(device.pointer_support, abi::kPointerHost);
    EXPECT_GT(device.speed, 0);
    EXPECT_EQ(device.port, 0);
    EXPECT_EQ(device.latency, 0);
    EXPECT_GE(device.max_comms, 1024);
    EXPECT_EQ(device.max_receives, 8);
    EXPECT_EQ(device.net_device_type, 0);
    EXPECT_EQ(device.net_device_version, 0);
    EXPECT_EQ(device.registration_is_global, 0);
    EXPECT_EQ(device.force_flush, 0);
    if (net.version() >= 9) {
      EXPECT_THAT(device.members, ::testing::ElementsAre(dev));
    }
    EXPECT_GT(device.max_p2p_bytes, 0U);
    EXPECT_LE(device.max_p2p_bytes, std::size_t{1} << 30);
    EXPECT_GT(device.max_coll_bytes, 0U);
    EXPECT_LE(device.max_coll_bytes, std::size_t{1} << 30);
    EXPECT_EQ(device.max_multi_request_size, 1);
    EXPECT_EQ(device.rail_id, -1);
    EXPECT_EQ(device.plane_id, -1);
    EXPECT_TRUE(guids.insert(device.guid).second) << "two devices of one guid are one port to NCCL";
  }
  NetProperties none;
  EXPECT_NE(net.properties(count, none), Result::kSuccess);
  EXPECT_NE(net.properties(-1, none), Result::kSuccess);
}

TEST(Abi, OurTablesAreThereForEveryVersionFrom6To12) {
  EXPECT_THAT(versions(), ::testing::ElementsAre(6, 7, 8, 9, 10, 11, 12));
}

}  // namespace
}  // namespace onebit::nccl_net::test
