// The command line of onebit_nccl_client.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace onebit::nccl_client {

/// What must be true of the results.
enum class Check {
  kExact,      ///< they are the sums and averages
  kIdentical,  ///< every rank has the same bytes, and the mean over the iterations comes closer than one
               ///< result
};

struct Options {
  int processes = 1;
  int threads = 1;  ///< of a process
  int devices = 1;  ///< of a thread, which drives them in groups
  int iterations = 4;
  int aggregated = 1;  ///< allreduces of a communicator in one group
  bool graph = false;  ///< captured once, launched in each iteration
  bool blocking = true;
  Check check = Check::kExact;
  std::vector<std::size_t> counts = {0, 1, 1009, 100003};
  std::vector<std::string> types = {"float", "half", "bfloat16"};
  std::vector<std::string> ops = {"sum", "avg"};

  int ranks() const { return processes * threads * devices; }
};

/// Empty when the program shall end with `status`.
std::optional<Options> parse(int argc, char** argv, int* status);

}  // namespace onebit::nccl_client
