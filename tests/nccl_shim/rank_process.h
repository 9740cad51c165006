// Ranks as processes of a test that is linked with the shim: forked before CUDA or NCCL is touched, since the
// shim reads its settings once a process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "job.h"

namespace onebit::shim {

/// What a rank has seen.
struct Outcome {
  int status = -1;     ///< of the process
  std::string output;  ///< its stderr
};

/// A variable of one rank, or of all with rank -1.
struct RankVariable {
  int rank;
  const char* name;
  const char* value;
};

/// A device of its own for each rank while there are enough; else all share device 0, and each rank tells
/// NCCL that it is on a machine of its own, since NCCL wants a device once a machine.
inline bool choose_device(int rank, int ranks) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
  if (devices < ranks) setenv("NCCL_HOSTID", ("onebit-test-" + std::to_string(rank)).c_str(), 1);
  return cudaSetDevice(devices < ranks ? 0 : rank) == cudaSuccess;
}

/// Runs `body(rank, ranks, id)` in `ranks` processes, each of which ends by exit() with what it returns.
inline std::vector<Outcome> run_rank_processes(int ranks, const std::vector<RankVariable>& variables,
                                               const std::function<int(int, int, ncclUniqueId)>& body) {
  int to_others[2];
  EXPECT_EQ(pipe(to_others), 0);
  struct Child {
    pid_t process;
    int error_output;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    int error_output[2];
    EXPECT_EQ(pipe(error_output), 0);
    const pid_t process = fork();
    if (process == 0) {
      dup2(error_output[1], STDERR_FILENO);
      close(error_output[0]);
      for (const RankVariable& variable : variables) {
        if (variable.rank == rank || variable.rank == -1) setenv(variable.name, variable.value, 1);
      }
      if (!choose_device(rank, ranks)) std::exit(93);
      ncclUniqueId id;
      if (rank == 0) {
        if (ncclGetUniqueId(&id) != ncclSuccess) std::exit(90);
        for (int other = 1; other < ranks; ++other) {
          if (write(to_others[1], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) std::exit(91);
        }
      } else if (read(to_others[0], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
        std::exit(92);
      }
      std::exit(body(rank, ranks, id));
    }
    close(error_output[1]);
    children.push_back({process, error_output[0]});
  }
  close(to_others[0]);
  close(to_others[1]);
  std::vector<Outcome> outcomes;
  for (const Child& child : children) {
    Outcome& outcome = outcomes.emplace_back();
    char text[4096];
    for (ssize_t n; (n = read(child.error_output, text, sizeof text)) > 0;) {
      outcome.output.append(text, static_cast<std::size_t>(n));
    }
    close(child.error_output);
    waitpid(child.process, &outcome.status, 0);
  }
  return outcomes;
}

/// A sum of 1 and 2, ... of `count` floats on all ranks, `calls` times. 0 when it is exact in every call.
inline int sum_exactly(int rank, int ranks, ncclUniqueId id, std::size_t count, int calls,
                       bool destroys = true) {
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) return 2;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 3;
  const Tensor tensor(4 * count);
  const NcclRank here = {rank, ranks, comm, stream};
  const auto expected = constant(count, static_cast<float>(ranks * (ranks + 1) / 2));
  int result = 0;
  for (int call = 0; call < calls; ++call) {
    if (all_reduce(here, tensor, constant(count, static_cast<float>(rank + 1)), ncclSum) != expected)
      result = 1;
  }
  if (destroys && ncclCommDestroy(comm) != ncclSuccess) return 4;
  return result;
}

}  // namespace onebit::shim
