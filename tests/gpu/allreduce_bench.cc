// What allreduces between processes cost with NCCL itself: by NCCL's own function, exactly through the shim,
// and in 1 bit, with messages by what ONEBIT_TRANSPORT says and chunks by ONEBIT_CHUNK. The same buffer; the
// mean of a rank's calls between two synchronisations, the best of several rounds. Rank 0 prints one line of
// JSON a size. Arguments: RANKS BYTES...
#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "rank_process.h"

namespace onebit::shim {
namespace {

constexpr int kCalls = 5;
constexpr int kRounds = 4;

using AllReduce = decltype(&ncclAllReduce);

struct Place {
  ncclComm_t comm;
  cudaStream_t stream;
};

/// Seconds a call, or a negative number after an error.
double seconds(const Place& place, void* buffer, std::size_t count, AllReduce all_reduce) {
  double best = -1;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) {
      if (all_reduce(buffer, buffer, count, ncclFloat, ncclAvg, place.comm, place.stream) != ncclSuccess)
        return -1;
    }
    if (cudaStreamSynchronize(place.stream) != cudaSuccess) return -1;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    // The first round makes connections and memory.
    if (round > 0 && (best < 0 || taken.count() / kCalls < best)) best = taken.count() / kCalls;
  }
  return best;
}

/// A variable, or what stands for it when it is not set.
std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

int measure(int rank, int ranks, ncclUniqueId id, const std::vector<std::size_t>& sizes) {
  Place place{};
  if (ncclCommInitRank(&place.comm, ranks, id, rank) != ncclSuccess) return 2;
  if (cudaStreamCreateWithFlags(&place.stream, cudaStreamNonBlocking) != cudaSuccess) return 3;
  const auto own = reinterpret_cast<AllReduce>(dlsym(RTLD_DEFAULT, "pncclAllReduce"));
  if (own == nullptr) return 4;
  for (const std::size_t bytes : sizes) {
    const Tensor tensor(bytes);
    const double direct = seconds(place, tensor.data(), bytes / 4, own);
    const double exact = seconds(place, tensor.data(), bytes / 4, &ncclAllReduce);
    if (onebitTagBuffer(tensor.data(), bytes, "grad") != onebitSuccess) return 5;
    const double compressed = seconds(place, tensor.data(), bytes / 4, &ncclAllReduce);
    if (onebitUntagBuffer(tensor.data()) != onebitSuccess) return 5;
    if (direct < 0 || exact < 0 || compressed < 0) return 6;
    if (rank != 0) continue;
    fmt::print(
        "{{\"ranks\": {}, \"bytes\": {}, \"transport\": \"{}\", \"chunk\": \"{}\", \"nccl_s\": {:.6g}, "
        "\"exact_through_shim_s\": {:.6g}, "
        "\"one_bit_s\": {:.6g}, "
        "\"exact_over_nccl\": {:.4f}, \"speedup\": {:.2f}}}\n",
        ranks, bytes, setting("ONEBIT_TRANSPORT", "nccl"), setting("ONEBIT_CHUNK", "automatic"), direct,
        exact, compressed, exact / direct, direct / compressed);
    std::fflush(stdout);
  }
  return ncclCommDestroy(place.comm) == ncclSuccess ? 0 : 7;
}

}  // namespace
}  // namespace onebit::shim

int main(int argc, char** argv) {
  const int ranks = argc > 2 ? std::atoi(argv[1]) : 0;
  std::vector<std::size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (ranks < 2) {
    fmt::print(stderr, "usage: gpu_allreduce_bench RANKS BYTES...\n");
    return 1;
  }
  int status = 0;
  for (const auto& outcome : onebit::shim::run_rank_processes(
           ranks, {},
           [&](int rank, int all, ncclUniqueId id) { return onebit::shim::measure(rank, all, id, sizes); })) {
    if (outcome.status == 0) continue;
    fmt::print(stderr, "{}", outcome.output);
    status = 1;
  }
  return status;
}
