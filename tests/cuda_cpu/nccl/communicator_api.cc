// Communicators, groups, errors, reduction operators and memory of NCCL's interface.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "cuda_cpu/engine/sanitizers.h"
#include "cuda_cpu/nccl/communicator.h"
#include "cuda_cpu/nccl/elements.h"
#include "cuda_cpu/nccl/group.h"
#include "cuda_cpu/nccl/profiling_name.h"

using namespace onebit::nccl_stand_in;

namespace {

ncclResult_t no_communicator() {
  return fail(ncclInvalidArgument, "this is no communicator, or one that is gone");
}

constexpr char kIdPrefix[] = "id-";

/// Empty when the id was not made here: NCCL's are addresses, and one of an unknown family is an internal
/// error.
std::string name_from(const ncclUniqueId& id) {
  const std::string text(id.internal, ::strnlen(id.internal, sizeof id.internal));
  return text.starts_with(kIdPrefix) ? text.substr(sizeof kIdPrefix - 1) : "";
}

bool is_blocking(const ncclConfig_t* config, bool otherwise) {
  if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  return config->blocking != 0;
}

ncclResult_t create(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank, bool blocking) {
  if (handle == nullptr) return fail_group(fail(ncclInvalidArgument, "no place for the communicator"));
  if (name_from(id).empty()) return fail_group(fail(ncclInternalError, "this is no unique id"));
  CommunicatorPointer made;
  const ncclResult_t result = Communicator::create(ranks, name_from(id), rank, blocking, &made);
  if (result != ncclSuccess) return fail_group(result);
  *handle = Communicator::handle_of(made);
  return submit(made);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return fail(ncclInvalidArgument, "no place for the version");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return fail(ncclInvalidArgument, "no place for the id");
  std::memset(id, 0, sizeof *id);
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "%s%08x%08x%08x", kIdPrefix, random(), random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return create(handle, ranks, id, rank, is_blocking(config, true));
}
ncclResult_t ncclCommInitRank(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank) {
  return create(handle, ranks, id, rank, true);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int ranks, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return create(handle, ranks, ids[0], rank, is_blocking(config, true));
}
ncclResult_t ncclCommInitAll(ncclComm_t* handles, int devices, const int* list) {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) return result;
  int before = 0;
  ::cudaGetDevice(&before);
  group_start();
  for (int i = 0; i < devices; ++i) {
    if (::cudaSetDevice(list == nullptr ? i : list[i]) != cudaSuccess) {
      fail_group(fail(ncclInvalidArgument, "no device for rank " + std::to_string(i)));
      break;
    }
    if (create(handles + i, devices, id, i, true) != ncclSuccess) break;
  }
  ::cudaSetDevice(before);
  return group_end();
}
ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  const CommunicatorPointer parent = Communicator::of(handle);
  if (parent == nullptr) return fail_group(no_communicator());
  if (part == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
    return fail_group(fail(ncclInvalidArgument, "no place for the communicator, or a colour below 0"));
  }
  const bool blocking = is_blocking(config, parent->blocking());
  const bool member = color != NCCL_SPLIT_NOCOLOR;
  const CommunicatorPointer made = Communicator::split(parent, color, key, blocking || !member);
  *part = member ? Communicator::handle_of(made) : nullptr;
  return submit(made);
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  return communicator == nullptr ? no_communicator() : communicator->drain();
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  const onebit::cuda_cpu::Unobserved quiet;
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr) return no_communicator();
  const ncclResult_t result = communicator->drain();
  Communicator::forget(handle);
  return result;
}
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  const onebit::cuda_cpu::Unobserved quiet;
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr) return no_communicator();
  communicator->abort();
  Communicator::forget(handle);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr || error == nullptr) return no_communicator();
  *error = communicator->blocking() ? communicator->error() : communicator->step();
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t handle, int* ranks) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr || ranks == nullptr) return no_communicator();
  *ranks = communicator->ranks();
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr || device == nullptr) return no_communicator();
  *device = communicator->device();
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr || rank == nullptr) return no_communicator();
  *rank = communicator->rank();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  group_start();
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return group_end();
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[ncclNumResults] = {"no error",
                                                  "unhandled cuda error",
                                                  "unhandled system error",
                                                  "internal error",
                                                  "invalid argument",
                                                  "invalid usage",
                                                  "remote process exited or there was a network error",
                                                  "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) {
  return last_error();
}

ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes) {
  return ::cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* pointer) {
  return ::cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t handle, void* buffer, std::size_t, void** registration) {
  if (Communicator::of(handle) == nullptr || registration == nullptr) return no_communicator();
  *registration = buffer;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t handle, void*) {
  return Communicator::of(handle) == nullptr ? no_communicator() : ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr) return no_communicator();
  if (op == nullptr || scalar == nullptr || !is_valid(type))
    return fail(ncclInvalidArgument, "no scalar or type");
  const bool immediate = residence == ncclScalarHostImmediate;
  auto& operators = communicator->operators();
  operators.push_back({true, type, immediate ? nullptr : scalar, immediate ? read_scalar(scalar, type) : 0});
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(operators.size()) - 1);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr) return no_communicator();
  const auto number = static_cast<std::size_t>(op) - ncclNumOps;
  if (op < ncclNumOps || number >= communicator->operators().size() ||
      !communicator->operators()[number].in_use) {
    return fail(ncclInvalidArgument, "this is no operator of the communicator");
  }
  communicator->operators()[number].in_use = false;
  return ncclSuccess;
}

}  // extern "C"

ONEBIT_PROFILING_NAME(ncclGetVersion);
ONEBIT_PROFILING_NAME(ncclGetUniqueId);
ONEBIT_PROFILING_NAME(ncclCommInitRankConfig);
ONEBIT_PROFILING_NAME(ncclCommInitRank);
ONEBIT_PROFILING_NAME(ncclCommInitRankScalable);
ONEBIT_PROFILING_NAME(ncclCommInitAll);
ONEBIT_PROFILING_NAME(ncclCommSplit);
ONEBIT_PROFILING_NAME(ncclCommFinalize);
ONEBIT_PROFILING_NAME(ncclCommDestroy);
ONEBIT_PROFILING_NAME(ncclCommAbort);
ONEBIT_PROFILING_NAME(ncclCommGetAsyncError);
ONEBIT_PROFILING_NAME(ncclCommCount);
ONEBIT_PROFILING_NAME(ncclCommCuDevice);
ONEBIT_PROFILING_NAME(ncclCommUserRank);
ONEBIT_PROFILING_NAME(ncclGroupStart);
ONEBIT_PROFILING_NAME(ncclGroupEnd);
ONEBIT_PROFILING_NAME(ncclGetErrorString);
ONEBIT_PROFILING_NAME(ncclGetLastError);
ONEBIT_PROFILING_NAME(ncclMemAlloc);
ONEBIT_PROFILING_NAME(ncclMemFree);
ONEBIT_PROFILING_NAME(ncclCommRegister);
ONEBIT_PROFILING_NAME(ncclCommDeregister);
ONEBIT_PROFILING_NAME(ncclRedOpCreatePreMulSum);
ONEBIT_PROFILING_NAME(ncclRedOpDestroy);
