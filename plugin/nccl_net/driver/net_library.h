// A net plugin as NCCL sees it: any library that exports ncclNetPlugin_vN, loaded by name, each version's
// table behind one interface.
//
// For tests and benchmarks, which drive our plugin and others' in the same way. Calls are passed on as they
// are: thread rules and results are the plugin's. A library stays loaded to the end of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "nccl_net/abi.h"

namespace onebit::nccl_net {

/// The properties of all versions; a member that a version lacks keeps the value here.
struct NetProperties {
  std::string name;
  std::string pci_path;  ///< empty for null
  std::uint64_t guid = 0;
  int pointer_support = 0;
  int speed = 0;
  int port = 0;
  float latency = 0;
  int max_comms = 0;
  int max_receives = 0;
  int net_device_type = 0;
  int net_device_version = 0;
  int registration_is_global = 0;
  int force_flush = 0;
  std::vector<int> members;
  std::size_t max_p2p_bytes = 1;
  std::size_t max_coll_bytes = 1;
  int max_multi_request_size = 1;
  int rail_id = -1;
  int plane_id = -1;
};

/// One version's table.
class Net {
 public:
  virtual ~Net() = default;
  virtual int version() const = 0;
  virtual std::string name() const = 0;
  /// The entries that NCCL needs and that are null, by name; empty for a sound table.
  virtual std::vector<std::string> missing_entries() const = 0;

  /// `ctx` stays null before v11. The traffic class of the communicator's configuration reaches the plugin
  /// here from v11 on, with v10 in connect.
  virtual abi::Result init(void** ctx, abi::Logger logger,
                           int traffic_class = abi::kNoTrafficClass) const = 0;
  virtual abi::Result devices(int& count) const = 0;
  virtual abi::Result properties(int dev, NetProperties& properties) const = 0;
  virtual abi::Result listen(void* ctx, int dev, void* handle, void** listen_comm) const = 0;
  virtual abi::Result connect(void* ctx, int dev, void* handle, void** send_comm,
                              int traffic_class = abi::kNoTrafficClass) const = 0;
  virtual abi::Result accept(void* listen_comm, void** receive_comm) const = 0;
  virtual abi::Result register_memory(void* comm, void* data, std::size_t size, int type,
                                      void** mhandle) const = 0;
  virtual abi::Result register_dma_buf(void* comm, void* data, std::size_t size, int type,
                                       std::uint64_t offset, int fd, void** mhandle) const = 0;
  virtual abi::Result deregister_memory(void* comm, void* mhandle) const = 0;
  virtual abi::Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                            void** request) const = 0;
  /// One message for each element of `data`; the other spans are as long.
  virtual abi::Result irecv(void* comm, std::span<void*> data, std::span<const std::size_t> sizes,
                            std::span<int> tags, std::span<void*> mhandles, void** request) const = 0;
  virtual abi::Result iflush(void* comm, void* data, int size, void* mhandle, void** request) const = 0;
  virtual abi::Result test(void* request, int* done, int* sizes) const = 0;
  virtual abi::Result close_send(void* comm) const = 0;
  virtual abi::Result close_receive(void* comm) const = 0;
  virtual abi::Result close_listen(void* comm) const = 0;
  /// From v9 on, and where the plugin has it; else kInvalidUsage.
  virtual abi::Result make_virtual_device(std::span<const int> members, int& dev) const = 0;
  /// From v11 on; else nothing.
  virtual abi::Result finalize(void* ctx) const = 0;
  virtual abi::Result set_attributes(void* ctx) const = 0;
};

/// The tables of a library (a path, or a name for the loader's search), oldest first. An error says what the
/// loader says, or that there is none.
Result<std::vector<std::unique_ptr<Net>>> load_net_library(const std::string& library);

}  // namespace onebit::nccl_net
