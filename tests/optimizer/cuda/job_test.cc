// Optimizers in a GPU's memory in processes of their own: the steps of the host's, and a rank that is killed.
// On the stand-ins, and by tests/gpu/run on a GPU with NCCL itself.

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <thread>

#include "nccl_shim/rank_process.h"
#include "optimizer_twins.h"
#include "support/temporary_directory.h"

namespace onebit::testing {
namespace {

using shim::Outcome;
using shim::run_rank_processes;

int free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(probe, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(probe);
  return ntohs(address.sin_port);
}

/// A rank's communicators and stream.
struct JobRank {
  ncclComm_t nccl_comm = nullptr;
  cudaStream_t stream = nullptr;
  onebitComm_t comm = nullptr;

  bool join(int rank, int ranks, ncclUniqueId id, int port) {
    if (ncclCommInitRank(&nccl_comm, ranks, id, rank) != ncclSuccess) return false;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    const std::string settings = loopback_settings();
    const onebitConfig_t config{sizeof config, "test", settings.c_str()};
    return onebitCommInitEnv(&comm, &config) == onebitSuccess;
  }
};

/// 0 when all steps of all types are the host's, with a restart in the middle.
int take_the_hosts_steps(int rank, int ranks, ncclUniqueId id, int port, const std::string& directory) {
  JobRank here;
  if (!here.join(rank, ranks, id, port)) return 2;
  for (const auto type : kAllTypes) {
    for (const bool compat : {false, true}) {
      if (compat && type < onebitOneBitLamb) continue;
      auto config = short_config(type);
      config.deepspeed_compat = compat ? 1 : 0;
      config.gradient_clipping = 1;
      const std::string name = "job" + std::to_string(type) + (compat ? "c" : "");
      config.name = name.c_str();
      const Tensors tensors{.sizes = {3001, 0, 70'000, 5},
                            .parameters = onebitBfloat16,
                            .gradients = onebitBfloat16,
                            .masked = compat,
                            .groups = 2};
      std::unique_ptr<OptimizerTwins> twins;
      for (int step = 1; step <= 30; ++step) {
        if (step == 1 || step == 19) {
          if (step != 1) {
            if (onebitOptimizerSave(twins->device(), directory.c_str()) != onebitSuccess) return 5;
            if (onebitBarrier(here.comm) != onebitSuccess) return 5;
          }
          twins =
              std::make_unique<OptimizerTwins>(config, tensors, rank, here.comm, here.nccl_comm, here.stream);
          if (twins->made() != onebitSuccess) return 3;
          for (const auto each : {twins->host(), twins->device()}) {
            if (step != 1 && onebitOptimizerLoad(each, directory.c_str()) != onebitSuccess) return 6;
          }
        }
        const auto same = twins->step(step);
        if (same) continue;
        std::fprintf(stderr, "type %d, compat %d: %s, %s\n", type, compat, same.message(),
                     onebitGetLastError(nullptr));
        return 1;
      }
    }
  }
  if (onebitCommDestroy(here.comm) != onebitSuccess) return 7;
  return ncclCommDestroy(here.nccl_comm) == ncclSuccess ? 0 : 8;
}

TEST(DeviceJob, OfProcessesTakesTheHostsStepsAndGoesOnAfterARestart) {
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory directory;
    const int port = free_port();
    const auto outcomes = run_rank_processes(ranks, {}, [&](int rank, int all, ncclUniqueId id) {
      return take_the_hosts_steps(rank, all, id, port, directory.path());
    });
    for (const Outcome& outcome : outcomes)
      EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome.output;
  }
}

constexpr std::size_t kLarge = 300'000;

/// Steps until an error; rank 1 is killed on the way. 0 when the error has come, nothing has changed, and the
/// state is saved.
int step_until_a_rank_is_killed(int rank, int ranks, ncclUniqueId id, onebitOptimizerType_t type,
                                const std::string& directory) {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) return 2;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 3;
  auto config = short_config(type);
  config.freeze_step = config.var_freeze_step = 3;
  OptimizerTwins twins(config, {{kLarge}}, rank, nullptr, comm, stream, "ONEBIT_TIMEOUT=20s");
  if (twins.made() != onebitSuccess) return 4;
  onebitResult_t result = onebitSuccess;
  std::thread killer;
  int steps = 0;
  std::vector<std::vector<std::byte>> before;
  for (; result == onebitSuccess; ++steps) {
    if (steps == 6 && rank == 1) {
      killer = std::thread([] {
        ::usleep(3'000);
        ::raise(SIGKILL);
      });
    }
    before = twins.device_parameters();
    twins.set_gradients(steps + 1);
    result = twins.step_device();
  }
  std::fprintf(stderr, "%s\n", onebitGetLastError(nullptr));
  if (result != onebitRemoteError && result != onebitTimeout && result != onebitSystemError) return 5;
  if (onebitOptimizerSave(twins.device(), directory.c_str()) != onebitSuccess) return 6;
  if (ncclCommAbort(comm) != ncclSuccess) return 7;
  if (twins.device_parameters() != before) return 8;
  return OptimizerTwins::info(twins.device()).steps == steps - 1 ? 0 : 9;
}

TEST(DeviceJob, WhoseRankIsKilledLeavesAStateThatANewJobGoesOnWith) {
  for (const auto type : kAllTypes) {
    SCOPED_TRACE(type);
    const TemporaryDirectory directory;
    const auto killed = run_rank_processes(3, {}, [&](int rank, int all, ncclUniqueId id) {
      return step_until_a_rank_is_killed(rank, all, id, type, directory.path());
    });
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
      EXPECT_EQ(killed[rank].status, 0) << killed[rank].output;
    }
    EXPECT_TRUE(WIFSIGNALED(killed[1].status));
    EXPECT_EQ(files_in(directory.path()), 2U);
    const auto resumed = run_rank_processes(2, {}, [&](int rank, int all, ncclUniqueId id) {
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, all, id, rank) != ncclSuccess) return 2;
      auto config = short_config(type);
      config.freeze_step = config.var_freeze_step = 3;
      OptimizerTwins twins(config, {{kLarge}}, rank, nullptr, comm, nullptr);
      if (twins.made() != onebitSuccess) return 3;
      if (onebitOptimizerLoad(twins.device(), directory.path().c_str()) != onebitSuccess) return 4;
      const auto steps = OptimizerTwins::info(twins.device()).steps;
      if (steps < 5) return 5;
      twins.set_gradients(1);
      return twins.step_device() == onebitSuccess ? 0 : 6;
    });
    for (const Outcome& outcome : resumed) EXPECT_EQ(outcome.status, 0) << outcome.output;
  }
}

}  // namespace
}  // namespace onebit::testing
