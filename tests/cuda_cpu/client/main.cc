// onebit_nccl_client: a job that knows only CUDA and NCCL and checks its allreduces, in the manner of
// nccl-tests. It runs on the stand-ins or on GPUs, alone or under a library that stands in front of NCCL
// (LD_PRELOAD).
//
// The first process starts the others by fork, before anything of CUDA runs in it, and only compares what
// they found.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "cuda_cpu/client/call.h"
#include "cuda_cpu/client/options.h"
#include "cuda_cpu/client/rank.h"

namespace onebit::nccl_client {
namespace {

/// In memory that the processes share.
struct Findings {
  static constexpr int kMaxRanks = 4096;
  std::atomic<int> wrong;
  std::atomic<std::uint64_t> digests[kMaxRanks];
};

/// All ranks of one thread, which has to issue everything for them in groups.
class RankThread {
 public:
  RankThread(const Options& options, int first, const ncclUniqueId& id) : options_(options) {
    for (int i = 0; i < options.devices; ++i) ranks_.push_back(std::make_unique<Rank>(options, first + i));
    in_group([&](Rank& rank) { rank.join(id); });
  }

  void run(Findings& findings) {
    for (const std::string& type : options_.types) {
      for (const std::string& op : options_.ops) {
        for (const std::size_t count : options_.counts) {
          for (const bool in_place : {false, true}) run_case({count, type, op, in_place}, findings);
        }
      }
    }
    for (const auto& rank : ranks_) rank->leave();
  }

  void report(int first, Findings& findings) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      findings.digests[first + static_cast<int>(i)] = ranks_[i]->digest();
    }
  }

 private:
  template <typename Body>
  void for_each(Body body) {
    for (const auto& rank : ranks_) body(*rank);
  }
  template <typename Body>
  void in_group(Body body) {
    ONEBIT_CALL(ncclGroupStart());
    for_each(body);
    ONEBIT_CALL(ncclGroupEnd());
    if (!options_.blocking) for_each([](const Rank& rank) { rank.await(); });
  }
  void run_case(const Case& next, Findings& findings) {
    for_each([&](Rank& rank) { rank.prepare(next); });
    const auto allreduce = [](const Rank& rank) { rank.allreduce(); };
    if (options_.graph) {
      for_each([](Rank& rank) { rank.capture(); });
      in_group(allreduce);
      for_each([](Rank& rank) { rank.take(); });
    }
    for (int i = 0; i < options_.iterations; ++i) {
      for_each([](Rank& rank) { rank.fill(); });
      if (options_.graph) {
        for_each([](const Rank& rank) { rank.launch_graph(); });
      } else {
        in_group(allreduce);
      }
      for_each([](Rank& rank) { rank.take(); });
    }
    for_each([&](Rank& rank) {
      if (!rank.judge()) ++findings.wrong;
      rank.release();
    });
  }

 private:
  const Options& options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

void run_thread(const Options& options, int first, const ncclUniqueId& id, Findings& findings) {
  try {
    RankThread thread(options, first, id);
    thread.run(findings);
    thread.report(first, findings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "onebit_nccl_client: rank {}: {}\n", first, error.what());
    ++findings.wrong;
  }
}

void run_process(const Options& options, int process, const ncclUniqueId& id, Findings& findings) {
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) {
    const int first = (process * options.threads + i) * options.devices;
    threads.emplace_back([&options, first, &id, &findings] { run_thread(options, first, id, findings); });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The number of processes that did not end well.
int run_processes(const Options& options, const ncclUniqueId& id, Findings& findings) {
  std::vector<pid_t> children;
  for (int process = 0; process < options.processes; ++process) {
    const pid_t child = ::fork();
    if (child == 0) {
      run_process(options, process, id, findings);
      ::_exit(findings.wrong > 0 ? 1 : 0);
    }
    if (child > 0) children.push_back(child);
  }
  int failed = options.processes - static_cast<int>(children.size());
  for (const pid_t child : children) {
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  return failed;
}

int run(const Options& options) {
  void* const memory =
      ::mmap(nullptr, sizeof(Findings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || options.ranks() > Findings::kMaxRanks) {
    fmt::print(stderr, "onebit_nccl_client: {} ranks are too many\n", options.ranks());
    return 2;
  }
  auto& findings = *new (memory) Findings();
  ncclUniqueId id;
  ONEBIT_CALL(ncclGetUniqueId(&id));
  int failed = 0;
  if (options.processes > 1) {
    failed = run_processes(options, id, findings);
  } else {
    run_process(options, 0, id, findings);
  }
  int different = 0;
  for (int rank = 1; rank < options.ranks(); ++rank) {
    if (findings.digests[rank] != findings.digests[0]) ++different;
  }
  const bool good = failed == 0 && findings.wrong == 0 && different == 0;
  fmt::print(
      "{} processes of {} threads with {} devices: {} (failed processes {}, wrong cases {}, ranks that "
      "differ from rank 0 "
      "{})\n",
      options.processes, options.threads, options.devices, good ? "all right" : "WRONG", failed,
      findings.wrong.load(), different);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace onebit::nccl_client

int main(int argc, char** argv) {
  int status = 0;
  const auto options = onebit::nccl_client::parse(argc, argv, &status);
  if (!options) return status;
  try {
    return onebit::nccl_client::run(*options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "onebit_nccl_client: {}\n", error.what());
    return 1;
  }
}
