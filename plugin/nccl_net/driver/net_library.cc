#include "nccl_net_driver/net_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace onebit::nccl_net {
namespace {

template <int Version, typename Table, typename Properties>
class NetOf final : public Net {
 public:
  explicit NetOf(const Table& table) : table_(table) {}
  ~NetOf() override = default;

  int version() const override { return Version; }
  std::string name() const override { return table_.name; }
  std::vector<std::string> missing_entries() const override {
    std::vector<std::string> missing;
    const auto need = [&](const char* what, bool there) {
      if (!there) missing.emplace_back(what);
    };
    need("name", table_.name != nullptr);
    need("init", table_.init != nullptr);
    need("devices", table_.devices != nullptr);
    need("getProperties", table_.getProperties != nullptr);
    need("listen", table_.listen != nullptr);
    need("connect", table_.connect != nullptr);
    need("accept", table_.accept != nullptr);
    need("regMr", table_.regMr != nullptr);
    need("deregMr", table_.deregMr != nullptr);
    need("isend", table_.isend != nullptr);
    need("irecv", table_.irecv != nullptr);
    need("iflush", table_.iflush != nullptr);
    need("test", table_.test != nullptr);
    need("closeSend", table_.closeSend != nullptr);
    need("closeRecv", table_.closeRecv != nullptr);
    need("closeListen", table_.closeListen != nullptr);
    if constexpr (Version >= 11) need("finalize", table_.finalize != nullptr);
    return missing;
  }

  abi::Result init(void** ctx, abi::Logger logger, int traffic_class) const override {
    *ctx = nullptr;
    if constexpr (Version >= 11) {
      abi::Config config{traffic_class};
      return table_.init(ctx, 0x0B17, &config, logger, nullptr);
    } else if constexpr (Version == 10) {
      return table_.init(logger, nullptr);
    } else {
      return table_.init(logger);
    }
  }
  abi::Result devices(int& count) const override { return table_.devices(&count); }
  abi::Result properties(int dev, NetProperties& out) const override {
    Properties got;
    std::memset(static_cast<void*>(&got), 0xA5, sizeof got);  // as NCCL's, which is not initialised
    const abi::Result result = table_.getProperties(dev, &got);
    if (result != abi::Result::kSuccess) return result;
    out.name = got.name;
    out.pci_path = got.pciPath != nullptr ? got.pciPath : "";
    out.guid = got.guid;
    out.pointer_support = got.ptrSupport;
    out.speed = got.speed;
    out.port = got.port;
    out.latency = got.latency;
    out.max_comms = got.maxComms;
    out.max_receives = got.maxRecvs;
    if constexpr (Version >= 7) {
      out.net_device_type = got.netDeviceType;
      out.net_device_version = got.netDeviceVersion;
    }
    if constexpr (Version >= 8) out.registration_is_global = got.regIsGlobal;
    if constexpr (Version >= 9) {
      out.force_flush = got.forceFlush;
      const auto most = static_cast<int>(std::size(got.vProps.devs));
      const int count = got.vProps.ndevs < 0 || got.vProps.ndevs > most ? 0 : got.vProps.ndevs;
      out.members.assign(got.vProps.devs, got.vProps.devs + count);
      out.max_p2p_bytes = got.maxP2pBytes;
      out.max_coll_bytes = got.maxCollBytes;
    }
    if constexpr (Version >= 11) out.max_multi_request_size = got.maxMultiRequestSize;
    if constexpr (Version >= 12) {
      out.rail_id = got.railId;
      out.plane_id = got.planeId;
    }
    return result;
  }

  abi::Result listen(void* ctx, int dev, void* handle, void** listen_comm) const override {
    if constexpr (Version >= 11) {
      return table_.listen(ctx, dev, handle, listen_comm);
    } else {
      return table_.listen(dev, handle, listen_comm);
    }
  }
  abi::Result connect(void* ctx, int dev, void* handle, void** send_comm, int traffic_class) const override {
    if constexpr (Version >= 11) {
      return table_.connect(ctx, dev, handle, send_comm, nullptr);
    } else if constexpr (Version == 10) {
      abi::Config config{traffic_class};
      return table_.connect(dev, &config, handle, send_comm, nullptr);
    } else if constexpr (Version >= 7) {
      return table_.connect(dev, handle, send_comm, nullptr);
    } else {
      return table_.connect(dev, handle, send_comm);
    }
  }
  abi::Result accept(void* listen_comm, void** receive_comm) const override {
    if constexpr (Version >= 7) {
      return table_.accept(listen_comm, receive_comm, nullptr);
    } else {
      return table_.accept(listen_comm, receive_comm);
    }
  }

  abi::Result register_memory(void* comm, void* data, std::size_t size, int type,
                              void** mhandle) const override {
    if constexpr (Version >= 8) {
      return table_.regMr(comm, data, size, type, mhandle);
    } else {
      return table_.regMr(comm, data, static_cast<int>(size), type, mhandle);
    }
  }
  abi::Result register_dma_buf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                               int fd, void** mhandle) const override {
    if (table_.regMrDmaBuf == nullptr) return abi::Result::kInvalidUsage;
    return table_.regMrDmaBuf(comm, data, size, type, offset, fd, mhandle);
  }
  abi::Result deregister_memory(void* comm, void* mhandle) const override {
    return table_.deregMr(comm, mhandle);
  }
  abi::Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                    void** request) const override {
    if constexpr (Version >= 10) {
      return table_.isend(comm, data, size, tag, mhandle, nullptr, request);
    } else if constexpr (Version == 9) {
      return table_.isend(comm, data, size, tag, mhandle, request);
    } else {
      return table_.isend(comm, data, static_cast<int>(size), tag, mhandle, request);
    }
  }
  abi::Result irecv(void* comm, std::span<void*> data, std::span<const std::size_t> sizes,
                    std::span<int> tags, std::span<void*> mhandles, void** request) const override {
    const int n = static_cast<int>(data.size());
    if constexpr (Version >= 9) {
      std::vector<std::size_t> copy(sizes.begin(), sizes.end());
      if constexpr (Version >= 10) {
        std::vector<void*> parents(data.size());
        return table_.irecv(comm, n, data.data(), copy.data(), tags.data(), mhandles.data(), parents.data(),
                            request);
      } else {
        return table_.irecv(comm, n, data.data(), copy.data(), tags.data(), mhandles.data(), request);
      }
    } else {
      std::vector<int> copy(sizes.begin(), sizes.end());
      return table_.irecv(comm, n, data.data(), copy.data(), tags.data(), mhandles.data(), request);
    }
  }
  abi::Result iflush(void* comm, void* data, int size, void* mhandle, void** request) const override {
    return table_.iflush(comm, 1, &data, &size, &mhandle, request);
  }
  abi::Result test(void* request, int* done, int* sizes) const override {
    return table_.test(request, done, sizes);
  }
  abi::Result close_send(void* comm) const override { return table_.closeSend(comm); }
  abi::Result close_receive(void* comm) const override { return table_.closeRecv(comm); }
  abi::Result close_listen(void* comm) const override { return table_.closeListen(comm); }

  abi::Result make_virtual_device(std::span<const int> members, int& dev) const override {
    if constexpr (Version >= 9) {
      if (table_.makeVDevice == nullptr) return abi::Result::kInvalidUsage;
      abi::VirtualDevice<Version >= 12 ? 8 : 4> wanted{};
      if (members.size() > std::size(wanted.devs)) return abi::Result::kInvalidUsage;
      wanted.ndevs = static_cast<int>(members.size());
      std::copy(members.begin(), members.end(), wanted.devs);
      return table_.makeVDevice(&dev, &wanted);
    } else {
      return abi::Result::kInvalidUsage;
    }
  }
  abi::Result finalize(void* ctx) const override {
    if constexpr (Version >= 11) return table_.finalize(ctx);
    return abi::Result::kSuccess;
  }
  abi::Result set_attributes(void* ctx) const override {
    if constexpr (Version >= 11) {
      abi::Attributes hints{{-1, -1, -1, -1}, {-1, -1, -1, -1}, ~0U, ~0U, ~0U};
      if (table_.setNetAttr != nullptr) return table_.setNetAttr(ctx, &hints);
    }
    return abi::Result::kSuccess;
  }

 private:
  const Table& table_;
};

template <int Version, typename Table, typename Properties>
void add(void* library, std::vector<std::unique_ptr<Net>>& found) {
  const std::string symbol = formatted("ncclNetPlugin_v{}", Version);
  if (const void* table = dlsym(library, symbol.c_str())) {
    found.push_back(std::make_unique<NetOf<Version, Table, Properties>>(*static_cast<const Table*>(table)));
  }
}

}  // namespace

Result<std::vector<std::unique_ptr<Net>>> load_net_library(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // as NCCL does
  if (loaded == nullptr) return Status::error(Code::kSystemError, "{}", dlerror());
  std::vector<std::unique_ptr<Net>> found;
  add<6, abi::TableV6, abi::PropertiesV6>(loaded, found);
  add<7, abi::TableV7, abi::PropertiesV7>(loaded, found);
  add<8, abi::TableV8, abi::PropertiesV8>(loaded, found);
  add<9, abi::TableV9, abi::PropertiesV9>(loaded, found);
  add<10, abi::TableV10, abi::PropertiesV9>(loaded, found);
  add<11, abi::TableV11, abi::PropertiesV11>(loaded, found);
  add<12, abi::TableV12, abi::PropertiesV12>(loaded, found);
  if (found.empty()) {
    return Status::error(Code::kInvalidUsage, "{}: no table ncclNetPlugin_v6 to _v12", library);
  }
  return found;
}

}  // namespace onebit::nccl_net
