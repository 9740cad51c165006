// The part of NCCL's binary interface that we use, declared here: onebit is built without NCCL and needs no
// particular version of it. NCCL is reached through a table of function pointers, filled by whoever found the
// library.
//
// Numbers and signatures are NCCL 2's, stable since 2.7 (send and receive), AVG since 2.10. Immutable values.
#pragma once

#include <driver_types.h>

#include <cstddef>

struct ncclComm;

namespace onebit::nccl {

using Comm = ncclComm*;

/// ncclResult_t.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// ncclDataType_t, those that we name; the others pass as numbers.
enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

/// ncclRedOp_t; numbers from 5 on are made by ncclRedOpCreatePreMulSum.
enum Op : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

/// The functions of the library that made a communicator.
struct Functions {
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* buffer, std::size_t count, Type type, int peer, Comm comm, cudaStream_t stream);
  Result (*receive)(void* buffer, std::size_t count, Type type, int peer, Comm comm, cudaStream_t stream);
  Result (*all_reduce)(const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,
                       cudaStream_t stream);
  Result (*reduce_scatter)(const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,
                           cudaStream_t stream);
  Result (*all_gather)(const void* send, void* receive, std::size_t count, Type type, Comm comm,
                       cudaStream_t stream);
  Result (*async_error)(Comm comm, Result* error);
  const char* (*error_string)(Result result);
};

}  // namespace onebit::nccl
