// The exported tables, one for each version of NCCL's net plugin API: thin translations to Plugin and Comm.
//
// No exception leaves; an error is logged once here, as a warning, and returned as the class that NCCL has
// for it. Any thread, as the objects behind allow.
#include <array>
#include <cstring>
#include <exception>

#include "nccl_net/abi.h"
#include "nccl_net/nccl_log.h"
#include "nccl_net/plugin.h"

namespace onebit::nccl_net {
namespace {

using abi::Result;

/// NCCL's messages are never larger than this in one piece; sizes in `test` are of type int.
constexpr std::size_t kAdvertisedBytes = kMaxMessage;
constexpr int kMaxComms = 65536;

template <typename Call>
Result guarded(Call call) noexcept {
  try {
    return report(call());
  } catch (const std::exception& e) {
    return report(Status(Code::kSystemError, "out of memory"));
  }
}

Status missing(const char* what) {
  return Status::error(Code::kInvalidArgument, "{} is null", what);
}

Result devices(int* count) {
  return guarded([&] {
    if (count == nullptr) return missing("the count of devices");
    auto setup = Plugin::get().setup();
    if (setup.ok()) *count = (*setup)->device_count();
    return setup.status();
  });
}

template <typename Properties>
Result get_properties(int dev, Properties* out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return missing("the device's properties");
    ONEBIT_ASSIGN_OR_RETURN(const auto setup, Plugin::get().setup());
    ONEBIT_ASSIGN_OR_RETURN(const DeviceProperties device, setup->properties(dev));
    Properties filled{};
    filled.name = device.name;
    filled.pciPath = device.pci_path;
    filled.guid = device.guid;
    filled.ptrSupport = device.pointers;
    filled.speed = device.speed_mbps;
    filled.maxComms = kMaxComms;
    // With GPUs each connection has one sender (receive_comm.h).
    filled.maxRecvs = device.pointers == abi::kPointerHost ? kMaxReceives : 1;
    // Zero: port, latency (NCCL has its own figure), type of device (the host's), global regMr, forceFlush.
    if constexpr (requires { filled.vProps; }) {
      filled.vProps.ndevs = static_cast<int>(device.members.size());
      std::copy(device.members.begin(), device.members.end(), filled.vProps.devs);
      filled.maxP2pBytes = filled.maxCollBytes = kAdvertisedBytes;
    }
    if constexpr (requires { filled.maxMultiRequestSize; }) filled.maxMultiRequestSize = 1;
    if constexpr (requires { filled.railId; }) filled.railId = filled.planeId = -1;
    *out = filled;
    return Status();
  });
}

template <int Max>
Result make_virtual_device(int* dev, abi::VirtualDevice<Max>* wanted) {
  return guarded([&]() -> Status {
    if (dev == nullptr || wanted == nullptr) return missing("an argument of makeVDevice");
    if (wanted->ndevs < 1 || wanted->ndevs > Max) {
      return Status::error(Code::kInvalidArgument, "{} devices to merge", wanted->ndevs);
    }
    ONEBIT_ASSIGN_OR_RETURN(const auto setup, Plugin::get().setup());
    ONEBIT_ASSIGN_OR_RETURN(*dev,
                            setup->merge(std::span(wanted->devs, static_cast<std::size_t>(wanted->ndevs))));
    return Status();
  });
}

// --- Set-up ---

/// 0 where the communicator's configuration says nothing.
onebit::Result<std::uint32_t> traffic_class_of(const abi::Config* config) {
  if (config == nullptr || config->trafficClass == abi::kNoTrafficClass) return 0U;
  if (config->trafficClass >= 0 && config->trafficClass <= 255)
    return static_cast<std::uint32_t>(config->trafficClass);
  return Status::error(Code::kInvalidArgument,
                       "the communicator's trafficClass is {}: over TCP it must be from 0 to 255",
                       config->trafficClass);
}

template <int Version>
Result init_v6(abi::Logger logger) {
  return guarded([&] { return Plugin::get().init_process(Version, logger); });
}
Result init_v10(abi::Logger logger, abi::Profiler /*profiler*/) {
  return init_v6<10>(logger);
}
template <int Version>
Result init_v11(void** ctx, std::uint64_t /*comm_id*/, abi::Config* config, abi::Logger logger,
                abi::Profiler /*profiler*/) {
  return guarded([&]() -> Status {
    if (ctx == nullptr) return missing("the context");
    *ctx = nullptr;
    ONEBIT_ASSIGN_OR_RETURN(const std::uint32_t traffic_class, traffic_class_of(config));
    return Plugin::get().init(Version, logger, traffic_class, ctx);
  });
}
Result finalize(void* ctx) {
  return guarded([&] {
    Plugin::get().finalize(ctx);
    return Status();
  });
}
Result set_attributes(void* /*ctx*/, abi::Attributes* /*attributes*/) {
  return Result::kSuccess;  // hints, which change nothing here
}

Result listen_v11(void* ctx, int dev, void* handle, void** listen_comm) {
  return guarded([&] {
    if (handle == nullptr || listen_comm == nullptr) return missing("an argument of listen");
    return Plugin::get().listen(ctx, dev, handle, listen_comm);
  });
}
Result listen_v6(int dev, void* handle, void** listen_comm) {
  return listen_v11(nullptr, dev, handle, listen_comm);
}

Result connect(void* ctx, int dev, const abi::Config* config, void* handle, void** send_comm) {
  return guarded([&]() -> Status {
    if (handle == nullptr || send_comm == nullptr) return missing("an argument of connect");
    *send_comm = nullptr;
    ONEBIT_ASSIGN_OR_RETURN(const std::uint32_t traffic_class, traffic_class_of(config));
    return Plugin::get().connect(ctx, dev, handle, traffic_class, send_comm);
  });
}
Result connect_v11(void* ctx, int dev, void* handle, void** send_comm, void** /*device_comm*/) {
  return connect(ctx, dev, nullptr, handle, send_comm);
}
Result connect_v10(int dev, abi::Config* config, void* handle, void** send_comm, void** /*device_comm*/) {
  return connect(nullptr, dev, config, handle, send_comm);
}
Result connect_v7(int dev, void* handle, void** send_comm, void** device_comm) {
  return connect_v11(nullptr, dev, handle, send_comm, device_comm);
}
Result connect_v6(int dev, void* handle, void** send_comm) {
  return connect_v11(nullptr, dev, handle, send_comm, nullptr);
}

Result accept_v7(void* listen_comm, void** receive_comm, void** /*device_comm*/) {
  return guarded([&] {
    if (receive_comm == nullptr) return missing("the receive comm");
    return Plugin::get().accept(listen_comm, receive_comm);
  });
}
Result accept_v6(void* listen_comm, void** receive_comm) {
  return accept_v7(listen_comm, receive_comm, nullptr);
}

Result close_comm(void* comm) {
  return guarded([&] {
    Plugin::get().close_comm(comm);
    return Status();
  });
}
Result close_listen(void* comm) {
  return guarded([&] {
    Plugin::get().close_listen(comm);
    return Status();
  });
}

// --- Memory ---

/// A memory that `call` registers, as a handle of NCCL's.
template <typename Call>
Result registered(void* comm, void** mhandle, Call call) noexcept {
  return guarded([&]() -> Status {
    if (comm == nullptr || mhandle == nullptr) return missing("the comm or the memory's handle");
    *mhandle = nullptr;
    ONEBIT_ASSIGN_OR_RETURN(std::unique_ptr<transport::Memory> memory, call(*static_cast<Comm*>(comm)));
    *mhandle = memory.release();
    return Status();
  });
}
template <typename Size>
Result register_memory(void* comm, void* data, Size size, int type, void** mhandle) {
  return registered(comm, mhandle,
                    [&](Comm& of) { return of.register_memory(data, static_cast<std::size_t>(size), type); });
}
Result register_dma_buf(void* comm, void* data, std::size_t size, int /*type*/, std::uint64_t offset, int fd,
                        void** mhandle) {
  return registered(comm, mhandle, [&](Comm& of) { return of.register_dma_buf(data, size, {fd, offset}); });
}
transport::Memory* memory_of(void** mhandles, int i) noexcept {
  return mhandles != nullptr ? static_cast<transport::Memory*>(mhandles[i]) : nullptr;
}
/// What regMr has made; null is let pass.
Result deregister_memory(void* /*comm*/, void* mhandle) {
  delete static_cast<transport::Memory*>(mhandle);
  return Result::kSuccess;
}

// --- Messages ---

Result isend_v10(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* /*phandle*/,
                 void** request) {
  return guarded([&]() -> Status {
    if (comm == nullptr || request == nullptr) return missing("an argument of isend");
    *request = nullptr;
    ONEBIT_ASSIGN_OR_RETURN(
        *request, static_cast<SendComm*>(static_cast<Comm*>(comm))
                      ->send(data, size, static_cast<Tag>(tag), static_cast<transport::Memory*>(mhandle)));
    return Status();
  });
}
template <typename Size>
Result isend(void* comm, void* data, Size size, int tag, void* mhandle, void** request) {
  return isend_v10(comm, data, static_cast<std::size_t>(size), tag, mhandle, nullptr, request);
}

/// NCCL may hand in a request of 1, which says that it does not insist on the completion: it is overwritten.
template <typename Size>
Result irecv(void* comm, int n, void** data, Size* sizes, int* tags, void** mhandles, void** request) {
  return guarded([&]() -> Status {
    if (comm == nullptr || request == nullptr || data == nullptr || sizes == nullptr || tags == nullptr) {
      return missing("an argument of irecv");
    }
    *request = nullptr;
    if (n < 1 || n > kMaxReceives) {
      return Status::error(Code::kInvalidArgument, "{} receives in one request: it must be 1 to {}", n,
                           kMaxReceives);
    }
    std::array<ReceiveComm::Wanted, kMaxReceives> wanted;
    for (int i = 0; i < n; ++i) {
      wanted[static_cast<std::size_t>(i)] = {data[i], static_cast<std::size_t>(sizes[i]),
                                             static_cast<Tag>(tags[i]), memory_of(mhandles, i)};
    }
    ONEBIT_ASSIGN_OR_RETURN(*request, static_cast<ReceiveComm*>(static_cast<Comm*>(comm))
                                          ->receive({wanted.data(), static_cast<std::size_t>(n)}));
    return Status();
  });
}
Result irecv_v10(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                 void** /*phandles*/, void** request) {
  return irecv(comm, n, data, sizes, tags, mhandles, request);
}

/// A null request: nothing to wait for. The last message with bytes stands for all, which came the same way.
Result iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  return guarded([&]() -> Status {
    if (comm == nullptr || request == nullptr || (n > 0 && (data == nullptr || sizes == nullptr))) {
      return missing("an argument of iflush");
    }
    *request = nullptr;
    auto& receiving = *static_cast<ReceiveComm*>(static_cast<Comm*>(comm));
    for (int i = n - 1; i >= 0; --i) {
      if (sizes[i] == 0) continue;
      ONEBIT_ASSIGN_OR_RETURN(
          *request, receiving.flush(data[i], static_cast<std::size_t>(sizes[i]), memory_of(mhandles, i)));
      break;
    }
    return Status();
  });
}

Result test(void* request, int* done, int* sizes) {
  return guarded([&]() -> Status {
    if (request == nullptr || done == nullptr) return missing("an argument of test");
    *done = 0;
    auto& operation = *static_cast<Operation*>(request);
    if (!operation.busy) return Status(Code::kInternalError, "test of a request that has ended");
    bool ended = false;
    const Status status = operation.comm->test(operation, ended, sizes);
    *done = ended ? 1 : 0;
    return status;
  });
}

constexpr char kName[] = "onebit";

template <typename Properties, typename RegistrationSize, int Version>
constexpr abi::TableV7to8<Properties, RegistrationSize> table_v7_to_8{kName,
                                                                      init_v6<Version>,
                                                                      devices,
                                                                      get_properties<Properties>,
                                                                      listen_v6,
                                                                      connect_v7,
                                                                      accept_v7,
                                                                      register_memory<RegistrationSize>,
                                                                      register_dma_buf,
                                                                      deregister_memory,
                                                                      isend<int>,
                                                                      irecv<int>,
                                                                      iflush,
                                                                      test,
                                                                      close_comm,
                                                                      close_comm,
                                                                      close_listen,
                                                                      nullptr,
                                                                      nullptr};

template <typename Properties, int MaxDevices, int Version>
constexpr abi::TableV11to12<Properties, MaxDevices> table_v11_to_12{kName,
                                                                    init_v11<Version>,
                                                                    devices,
                                                                    get_properties<Properties>,
                                                                    listen_v11,
                                                                    connect_v11,
                                                                    accept_v7,
                                                                    register_memory<std::size_t>,
                                                                    register_dma_buf,
                                                                    deregister_memory,
                                                                    isend_v10,
                                                                    irecv_v10,
                                                                    iflush,
                                                                    test,
                                                                    close_comm,
                                                                    close_comm,
                                                                    close_listen,
                                                                    nullptr,
                                                                    nullptr,
                                                                    make_virtual_device<MaxDevices>,
                                                                    finalize,
                                                                    set_attributes};

}  // namespace

#define ONEBIT_EXPORT extern "C" __attribute__((visibility("default"))) const
// The entries that are null: getDeviceMr, irecvConsumed (no offload to a device).
ONEBIT_EXPORT abi::TableV6 ncclNetPlugin_v6{kName,
                                            init_v6<6>,
                                            devices,
                                            get_properties<abi::PropertiesV6>,
                                            listen_v6,
                                            connect_v6,
                                            accept_v6,
                                            register_memory<int>,
                                            register_dma_buf,
                                            deregister_memory,
                                            isend<int>,
                                            irecv<int>,
                                            iflush,
                                            test,
                                            close_comm,
                                            close_comm,
                                            close_listen};
ONEBIT_EXPORT abi::TableV7 ncclNetPlugin_v7 = table_v7_to_8<abi::PropertiesV7, int, 7>;
ONEBIT_EXPORT abi::TableV8 ncclNetPlugin_v8 = table_v7_to_8<abi::PropertiesV8, std::size_t, 8>;
ONEBIT_EXPORT abi::TableV9 ncclNetPlugin_v9{kName,
                                            init_v6<9>,
                                            devices,
                                            get_properties<abi::PropertiesV9>,
                                            listen_v6,
                                            connect_v7,
                                            accept_v7,
                                            register_memory<std::size_t>,
                                            register_dma_buf,
                                            deregister_memory,
                                            isend<std::size_t>,
                                            irecv<std::size_t>,
                                            iflush,
                                            test,
                                            close_comm,
                                            close_comm,
                                            close_listen,
                                            nullptr,
                                            nullptr,
                                            make_virtual_device<4>};
ONEBIT_EXPORT abi::TableV10 ncclNetPlugin_v10{kName,
                                              init_v10,
                                              devices,
                                              get_properties<abi::PropertiesV9>,
                                              listen_v6,
                                              connect_v10,
                                              accept_v7,
                                              register_memory<std::size_t>,
                                              register_dma_buf,
                                              deregister_memory,
                                              isend_v10,
                                              irecv_v10,
                                              iflush,
                                              test,
                                              close_comm,
                                              close_comm,
                                              close_listen,
                                              nullptr,
                                              nullptr,
                                              make_virtual_device<4>};
ONEBIT_EXPORT abi::TableV11 ncclNetPlugin_v11 = table_v11_to_12<abi::PropertiesV11, 4, 11>;
ONEBIT_EXPORT abi::TableV12 ncclNetPlugin_v12 = table_v11_to_12<abi::PropertiesV12, 8, 12>;

}  // namespace onebit::nccl_net
