// NCCL's net plugin ABI, versions 6 to 12, as we declare it: what a library must export to carry NCCL's
// traffic.
//
// An ABI of C on LP64: sizes and offsets below are part of it and are checked here. NCCL looks for the newest
// table that it knows, `ncclNetPlugin_vN`; 2.18 takes v6, 2.19 v7, 2.20 to 2.23 v8, 2.24 and 2.25 v9, 2.26
// and 2.27 v10, 2.28 and 2.29 v11, 2.30 v12. Optional entries may be null.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onebit::nccl_net::abi {

/// ncclResult_t.
enum class Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

/// ncclDebugLogLevel and, of ncclDebugLogSubSys, what a net plugin uses.
inline constexpr int kLogWarn = 2;
inline constexpr int kLogInfo = 3;
inline constexpr int kLogTrace = 5;
inline constexpr unsigned long kSubsystemInit = 0x1;
inline constexpr unsigned long kSubsystemNet = 0x10;

using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line, const char* format,
                        ...);
using Profiler = Result (*)(void** event, int type, void* parent, std::int64_t plugin, void* data);

inline constexpr std::size_t kHandleBytes = 128;
inline constexpr int kPointerHost = 0x1;
inline constexpr int kPointerCuda = 0x2;
inline constexpr int kPointerDmaBuf = 0x4;
inline constexpr int kMaxRequests = 32;  ///< in flight on one comm; of a send comm, for each of maxRecvs

/// A merged device: the devices that it stripes over.
template <int Max>
struct VirtualDevice {
  int ndevs;
  int devs[Max];
};

struct PropertiesV6 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int speed;  ///< Mbit/s
  int port;
  float latency;  ///< us
  int maxComms;
  int maxRecvs;
};

struct PropertiesV7 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};

struct PropertiesV8 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};

struct PropertiesV9 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<4> vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
};

struct PropertiesV11 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<4> vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
  int maxMultiRequestSize;
};

struct PropertiesV12 {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<8> vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
  int maxMultiRequestSize;
  std::int16_t railId;
  std::int16_t planeId;
};

/// The quality of service that the user asks of a communicator's traffic.
inline constexpr int kNoTrafficClass = -1;
struct Config {
  int trafficClass;
};

/// Hints about the traffic to come.
struct Attributes {
  struct Peers {
    std::int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
  };
  Peers send, receive;
  std::uint32_t op, algo, proto;
};

// The entries, by the versions in which their type is the same.
using InitV6 = Result (*)(Logger);
using InitV10 = Result (*)(Logger, Profiler);
using InitV11 = Result (*)(void** ctx, std::uint64_t commId, Config*, Logger, Profiler);
using Devices = Result (*)(int* count);
template <typename Properties>
using GetProperties = Result (*)(int dev, Properties*);
using ListenV6 = Result (*)(int dev, void* handle, void** listenComm);
using ListenV11 = Result (*)(void* ctx, int dev, void* handle, void** listenComm);
using ConnectV6 = Result (*)(int dev, void* handle, void** sendComm);
using ConnectV7 = Result (*)(int dev, void* handle, void** sendComm, void** sendDevComm);
using ConnectV10 = Result (*)(int dev, Config*, void* handle, void** sendComm, void** sendDevComm);
using ConnectV11 = Result (*)(void* ctx, int dev, void* handle, void** sendComm, void** sendDevComm);
using AcceptV6 = Result (*)(void* listenComm, void** recvComm);
using AcceptV7 = Result (*)(void* listenComm, void** recvComm, void** recvDevComm);
template <typename Size>
using RegMr = Result (*)(void* comm, void* data, Size size, int type, void** mhandle);
using RegMrDmaBuf = Result (*)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                               int fd, void** mhandle);
using DeregMr = Result (*)(void* comm, void* mhandle);
template <typename Size>
using Isend = Result (*)(void* sendComm, void* data, Size size, int tag, void* mhandle, void** request);
using IsendV10 = Result (*)(void* sendComm, void* data, std::size_t size, int tag, void* mhandle,
                            void* phandle, void** request);
template <typename Size>
using Irecv = Result (*)(void* recvComm, int n, void** data, Size* sizes, int* tags, void** mhandles,
                         void** request);
using IrecvV10 = Result (*)(void* recvComm, int n, void** data, std::size_t* sizes, int* tags,
                            void** mhandles, void** phandles, void** request);
using Iflush = Result (*)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
using Test = Result (*)(void* request, int* done, int* sizes);
using Close = Result (*)(void* comm);
using GetDeviceMr = Result (*)(void* comm, void* mhandle, void** deviceHandle);
using IrecvConsumed = Result (*)(void* recvComm, int n, void* request);
template <int Max>
using MakeVDevice = Result (*)(int* dev, VirtualDevice<Max>*);
using Finalize = Result (*)(void* ctx);
using SetNetAttr = Result (*)(void* ctx, Attributes*);

struct TableV6 {
  const char* name;
  InitV6 init;
  Devices devices;
  GetProperties<PropertiesV6> getProperties;
  ListenV6 listen;
  ConnectV6 connect;
  AcceptV6 accept;
  RegMr<int> regMr;
  RegMrDmaBuf regMrDmaBuf;
  DeregMr deregMr;
  Isend<int> isend;
  Irecv<int> irecv;
  Iflush iflush;
  Test test;
  Close closeSend, closeRecv, closeListen;
};

/// v7 and v8.
template <typename Properties, typename RegistrationSize>
struct TableV7to8 {
  const char* name;
  InitV6 init;
  Devices devices;
  GetProperties<Properties> getProperties;
  ListenV6 listen;
  ConnectV7 connect;
  AcceptV7 accept;
  RegMr<RegistrationSize> regMr;
  RegMrDmaBuf regMrDmaBuf;
  DeregMr deregMr;
  Isend<int> isend;
  Irecv<int> irecv;
  Iflush iflush;
  Test test;
  Close closeSend, closeRecv, closeListen;
  GetDeviceMr getDeviceMr;
  IrecvConsumed irecvConsumed;
};
using TableV7 = TableV7to8<PropertiesV7, int>;
using TableV8 = TableV7to8<PropertiesV8, std::size_t>;

/// v9 and v10.
template <typename Init, typename Connect, typename Isend, typename Irecv>
struct TableV9to10 {
  const char* name;
  Init init;
  Devices devices;
  GetProperties<PropertiesV9> getProperties;
  ListenV6 listen;
  Connect connect;
  AcceptV7 accept;
  RegMr<std::size_t> regMr;
  RegMrDmaBuf regMrDmaBuf;
  DeregMr deregMr;
  Isend isend;
  Irecv irecv;
  Iflush iflush;
  Test test;
  Close closeSend, closeRecv, closeListen;
  GetDeviceMr getDeviceMr;
  IrecvConsumed irecvConsumed;
  MakeVDevice<4> makeVDevice;
};
using TableV9 = TableV9to10<InitV6, ConnectV7, Isend<std::size_t>, Irecv<std::size_t>>;
using TableV10 = TableV9to10<InitV10, ConnectV10, IsendV10, IrecvV10>;

/// v11 and v12.
template <typename Properties, int MaxDevices>
struct TableV11to12 {
  const char* name;
  InitV11 init;
  Devices devices;
  GetProperties<Properties> getProperties;
  ListenV11 listen;
  ConnectV11 connect;
  AcceptV7 accept;
  RegMr<std::size_t> regMr;
  RegMrDmaBuf regMrDmaBuf;
  DeregMr deregMr;
  IsendV10 isend;
  IrecvV10 irecv;
  Iflush iflush;
  Test test;
  Close closeSend, closeRecv, closeListen;
  GetDeviceMr getDeviceMr;
  IrecvConsumed irecvConsumed;
  MakeVDevice<MaxDevices> makeVDevice;
  Finalize finalize;
  SetNetAttr setNetAttr;
};
using TableV11 = TableV11to12<PropertiesV11, 4>;
using TableV12 = TableV11to12<PropertiesV12, 8>;

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8 && sizeof(int) == 4 && sizeof(float) == 4);
static_assert(sizeof(PropertiesV6) == 48 && offsetof(PropertiesV6, speed) == 28);
static_assert(sizeof(PropertiesV7) == 56 && offsetof(PropertiesV7, netDeviceType) == 48);
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed) == 32);
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, vProps) == 64 &&
              offsetof(PropertiesV9, maxP2pBytes) == 88);
static_assert(sizeof(PropertiesV11) == 112 && offsetof(PropertiesV11, maxMultiRequestSize) == 104);
static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, maxP2pBytes) == 104 &&
              offsetof(PropertiesV12, railId) == 124 && offsetof(PropertiesV12, planeId) == 126);
static_assert(sizeof(TableV6) == 136 && sizeof(TableV7) == 152 && sizeof(TableV8) == 152);
static_assert(sizeof(TableV9) == 160 && sizeof(TableV10) == 160);
static_assert(sizeof(TableV11) == 176 && sizeof(TableV12) == 176);
static_assert(sizeof(Attributes) == 44 && sizeof(Config) == 4);

}  // namespace onebit::nccl_net::abi
