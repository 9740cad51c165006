// The stand-in for NCCL between processes that die or never come. The test's own process calls nothing of
// CUDA, so that it may fork.
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "cuda_cpu/nccl_ranks.h"

namespace onebit::cuda_cpu {
namespace {

/// Runs `body` in a process that ends with its result.
pid_t start(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}
int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

std::size_t files_left(const ncclUniqueId& id) {
  std::size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().string().find(id.internal) != std::string::npos) ++count;
  }
  return count;
}

/// What the communicator says after an allreduce that ends one way or another.
ncclResult_t allreduce(ncclComm_t comm) {
  const TestStream stream;
  const DeviceFloats data(100000, 1.0F);
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 100000, ncclFloat, ncclSum, comm, stream));
  stream.synchronize();
  ncclResult_t error = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
  return error;
}

TEST(NcclProcesses, ARankThatIsKilledIsARemoteErrorToTheOthersAndLeavesNothingBehind) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeded(ncclGetUniqueId(&id)));
  constexpr int kRanks = 3;
  pid_t children[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    children[rank] = start([&id, rank] {
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess) return 10;
      if (allreduce(comm) != ncclSuccess) return 11;
      if (rank == 1) ::raise(SIGKILL);
      return static_cast<int>(allreduce(comm));
    });
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const int status = status_of(children[rank]);
    if (rank == 1) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), ncclRemoteError);
    }
  }
  EXPECT_EQ(files_left(id), 0U);
}

TEST(NcclProcesses, ARankWhosePeersNeverComeGivesUpAndLeavesNothingBehind) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeded(ncclGetUniqueId(&id)));
  const pid_t child = start([&id] {
    ::setenv("CUDA_CPU_NCCL_TIMEOUT", "1", 1);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, 2, id, 0);
    ncclCommAbort(comm);
    return static_cast<int>(result);
  });
  const int status = status_of(child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), ncclSystemError);
  EXPECT_EQ(files_left(id), 0U);
}

}  // namespace
}  // namespace onebit::cuda_cpu
