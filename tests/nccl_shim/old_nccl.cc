// An NCCL from before 2.7: no ncclSend, no ncclRecv, no configurations. One process is all ranks; an
// allreduce counts and leaves its buffers alone.
#include <cstddef>
#include <cstring>

extern "C" {

struct ncclComm {
  int ranks;
};
struct OldUniqueId {
  char bytes[128];
};

static int allreduces = 0;
static const char kId[] = "made by an old NCCL";

__attribute__((visibility("default"))) int onebit_old_nccl_allreduces() {
  return allreduces;
}

// Each of NCCL's functions is there twice.
#define ONEBIT_OLD_NCCL(name, parameters)                                                             \
  __attribute__((visibility("default"))) int name parameters __attribute__((weak, alias("p" #name))); \
  __attribute__((visibility("default"))) int p##name parameters

ONEBIT_OLD_NCCL(ncclGetVersion, (int* version)) {
  *version = 2604;
  return 0;
}
ONEBIT_OLD_NCCL(ncclGetUniqueId, (OldUniqueId * id)) {
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, kId, sizeof kId);
  return 0;
}
ONEBIT_OLD_NCCL(ncclCommInitRank, (ncclComm * *comm, int ranks, OldUniqueId id, int)) {
  if (std::memcmp(id.bytes, kId, sizeof kId) != 0) return 3;
  *comm = new ncclComm{ranks};
  return 0;
}
ONEBIT_OLD_NCCL(ncclCommCount, (ncclComm * comm, int* count)) {
  *count = comm->ranks;
  return 0;
}
ONEBIT_OLD_NCCL(ncclCommUserRank, (ncclComm*, int* rank)) {
  *rank = 0;
  return 0;
}
ONEBIT_OLD_NCCL(ncclCommCuDevice, (ncclComm*, int* device)) {
  *device = 0;
  return 0;
}
ONEBIT_OLD_NCCL(ncclAllReduce, (const void*, void*, std::size_t, int, int, ncclComm*, void*)) {
  ++allreduces;
  return 0;
}
ONEBIT_OLD_NCCL(ncclCommDestroy, (ncclComm * comm)) {
  delete comm;
  return 0;
}

}  // extern "C"
