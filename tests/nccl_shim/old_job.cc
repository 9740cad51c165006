// A job on an NCCL from before 2.7. 0 when its allreduces were NCCL's own, and what that NCCL lacks is an
// error, also where the shim has it; 2 when it gets no communicator.
#include <dlfcn.h>

#include <cstddef>

struct ncclComm;
struct OldUniqueId {
  char bytes[128];
};
extern "C" {
int ncclGetUniqueId(OldUniqueId* id);
int ncclCommInitRank(ncclComm** comm, int ranks, OldUniqueId id, int rank);
int ncclAllReduce(const void*, void*, std::size_t count, int type, int op, ncclComm* comm, void* stream);
int ncclCommDestroy(ncclComm* comm);
int onebit_old_nccl_allreduces();
}

int main() {
  constexpr int kFloat = 7;
  constexpr int kInvalidUsage = 5;
  static float buffer[4096];
  OldUniqueId id;
  ncclComm* comm = nullptr;
  if (ncclGetUniqueId(&id) != 0 || ncclCommInitRank(&comm, 2, id, 0) != 0) return 2;
  for (int call = 0; call < 3; ++call) {
    if (ncclAllReduce(buffer, buffer, 4096, kFloat, 0, comm, nullptr) != 0) return 3;
  }
  if (onebit_old_nccl_allreduces() != 3) return 4;
  using InitRankConfig = int (*)(ncclComm**, int, OldUniqueId, int, void*);
  const auto newer = reinterpret_cast<InitRankConfig>(dlsym(RTLD_DEFAULT, "ncclCommInitRankConfig"));
  ncclComm* none = nullptr;
  if (newer != nullptr && newer(&none, 2, id, 0, nullptr) != kInvalidUsage) return 5;
  return ncclCommDestroy(comm);
}
