// A job of NCCL for the shim's tests: allreduces of known inputs, and what they give when exact. The program
// is linked with the shim before NCCL, which is what LD_PRELOAD comes to.
#pragma once

#include <dlfcn.h>
#include <onebit/onebit.h>

#include <cstddef>
#include <span>
#include <vector>

#include "cuda_cpu/nccl_ranks.h"
#include "support/simulation.h"
#include "tensor.h"

namespace onebit::shim {

using cuda_cpu::NcclRank;
using cuda_cpu::run_nccl_ranks;
using nccl::Tensor;
using testing::input;
using testing::Simulation;

/// A function of the shim's as a job finds it that does not link to us.
template <typename Function>
Function* by_name(const char* name, Function*) {
  auto* const found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  EXPECT_NE(found, nullptr) << name;
  return found;
}

/// The bytes of a float tensor that has the small whole number `value` everywhere.
inline std::vector<std::byte> constant(std::size_t count, float value) {
  const std::vector<float> values(count, value);
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// One call in place with `tensor` after `x` has been written to it; gives what is there then.
inline std::vector<std::byte> all_reduce(const NcclRank& here, const Tensor& tensor,
                                         const std::vector<std::byte>& x, ncclRedOp_t op = ncclAvg) {
  tensor.write(x, here.stream);
  EXPECT_NCCL(
      ncclAllReduce(tensor.data(), tensor.data(), x.size() / 4, ncclFloat, op, here.comm, here.stream));
  return tensor.read(here.stream);
}

}  // namespace onebit::shim
