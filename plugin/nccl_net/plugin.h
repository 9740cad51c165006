// The plugin in this process: the instances that NCCL has made, and the calls of its ABI in their neutral
// form.
//
// The adapters (adapters.cc) translate each version's calls into these. Any thread; a mutex guards the tables
// and is not needed on the path of data. Nothing is ever freed that NCCL might still name: ending twice, or
// after finalize, is harmless. Never destroyed: threads of NCCL may outlive the program's main().
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "nccl_net/abi.h"
#include "nccl_net/closing.h"
#include "nccl_net/instance.h"

namespace onebit::nccl_net {

class Plugin {
 public:
  static Plugin& get();

  /// An init of version 6 to 10: of the one instance that the process has. Again after NCCL has let go of
  /// all.
  Status init_process(int version, abi::Logger logger);
  /// An init of version 11 or 12: an instance of its own, which `ctx` names. `traffic_class`, here and in
  /// connect, is of the connections to make, 0 for none.
  Status init(int version, abi::Logger logger, std::uint32_t traffic_class, void** ctx);
  /// Ends the instance: its listeners and half-open connections. Unknown and null ones are let pass.
  void finalize(void* ctx);

  /// The instance that `ctx` names, or that of the process for null. kInvalidUsage before init.
  Result<std::shared_ptr<Instance>> instance(void* ctx);
  /// The setup of the latest init, for the calls that name no instance.
  Result<std::shared_ptr<Setup>> setup();

  Status listen(void* ctx, int device, void* handle, void** comm);
  Status connect(void* ctx, int device, void* handle, std::uint32_t traffic_class, void** comm);
  Status accept(void* listen_comm, void** comm);
  void close_comm(void* comm);
  void close_listen(void* comm);

 private:
  Plugin();
  Result<std::shared_ptr<Setup>> start(int version, abi::Logger logger);
  /// All here is the parent's, and there was no init yet in this child of it.
  bool inherited() const { return generation_ != UniqueSocket::process_generation(); }

  struct Listening {
    std::shared_ptr<ListenComm> comm;
    const Instance* instance;
  };

  std::mutex mutex_;
  std::shared_ptr<Setup> setup_;
  std::shared_ptr<Instance> process_instance_;
  std::unordered_map<void*, std::shared_ptr<Instance>> instances_;
  std::unordered_map<void*, Listening> listening_;
  std::unordered_map<void*, std::unique_ptr<Comm>> comms_;
  Closing closing_;
  std::uint32_t generation_ = UniqueSocket::process_generation();
  unsigned announced_ = 0;  ///< versions that have been logged, a bit each
  friend struct ForkHandlers;
  friend struct AtExit;
};

}  // namespace onebit::nccl_net
