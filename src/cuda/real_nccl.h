// The NCCL that a call was meant for, however the job has loaded it.
//
// Names are looked up as pncclX, which every NCCL exports beside ncclX and libonebit-nccl.so does not define.
// The library is found, in this order: ONEBIT_NCCL_LIBRARY; what the caller's own object sees (it and what it
// needs: also under RTLD_LOCAL, also when NCCL is linked into it); the next object after this one; any loaded
// object. A table is kept for each library, never freed, with the library held. Any thread.
#pragma once

#include <string>

#include "base/format.h"
#include "collective/nccl/nccl_abi.h"

namespace onebit::nccl {

/// ncclUniqueId.
struct UniqueId {
  char bytes[128];
};

/// The head of ncclConfig_t; fields after it differ between versions.
struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* name;  ///< from 2.27 on
};

struct RealNccl {
  Functions functions{};
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*init_rank)(Comm* comm, int ranks, UniqueId id, int rank) = nullptr;
  Result (*init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  Result (*init_rank_scalable)(Comm* comm, int ranks, int rank, int ids, UniqueId* id,
                               Config* config) = nullptr;
  Result (*init_all)(Comm* comms, int devices, const int* list) = nullptr;
  Result (*split)(Comm comm, int color, int key, Comm* made, Config* config) = nullptr;
  Result (*count)(Comm comm, int* count) = nullptr;
  Result (*user_rank)(Comm comm, int* rank) = nullptr;
  Result (*device)(Comm comm, int* device) = nullptr;
  int version = 0;

  /// As in 2.6.4. Since 2.9 the number has one more digit for each part.
  std::string version_text() const {
    const int scale = version < 10000 ? 10 : 100;
    return formatted("{}.{}.{}", version / (100 * scale), version / 100 % scale, version % 100);
  }
  /// Whether it has all that a compressed allreduce needs (2.7 and later).
  bool is_recent() const { return functions.send != nullptr && functions.receive != nullptr; }
};

/// For a call that returns to `caller`. Null when there is no NCCL in this process; said once.
const RealNccl* real_nccl(const void* caller);
/// Of the library at `path`. Null when it cannot be opened or is no NCCL; said.
const RealNccl* real_nccl_at(const char* path);

}  // namespace onebit::nccl
