// The operations of NCCL's interface, with the checks of their arguments.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "cuda_cpu/nccl/communicator.h"
#include "cuda_cpu/nccl/elements.h"
#include "cuda_cpu/nccl/group.h"
#include "cuda_cpu/nccl/profiling_name.h"

using namespace onebit::nccl_stand_in;

namespace {

using Kind = Task::Kind;

ncclResult_t check_buffer(const Communicator& communicator, const void* buffer, const char* which) {
  cudaPointerAttributes attributes{};
  ::cudaPointerGetAttributes(&attributes, buffer);
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return fail(ncclInvalidArgument, std::string(which) + " is not memory of CUDA's");
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != communicator.device()) {
    return fail(ncclInvalidArgument, std::string(which) + " is on device " +
                                         std::to_string(attributes.device) + ", the communicator on " +
                                         std::to_string(communicator.device()));
  }
  return ncclSuccess;
}

bool reads_send_buffer(const Communicator& communicator, const Task& task) {
  switch (task.kind) {
    case Kind::kReceive:
      return false;
    case Kind::kBroadcast:
    case Kind::kScatter:
      return communicator.rank() == task.peer;
    default:
      return true;
  }
}
bool writes_receive_buffer(const Communicator& communicator, const Task& task) {
  switch (task.kind) {
    case Kind::kSend:
      return false;
    case Kind::kReduce:
    case Kind::kGather:
      return communicator.rank() == task.peer;
    default:
      return true;
  }
}

ncclResult_t check(const Communicator& communicator, const Task& task) {
  if (!is_valid(task.type)) return fail(ncclInvalidArgument, "no type " + std::to_string(task.type));
  if (task.peer < 0 || task.peer >= communicator.ranks()) {
    return fail(ncclInvalidArgument, "no rank " + std::to_string(task.peer));
  }
  int device = communicator.device();
  if (task.stream != nullptr && ::cudaStreamGetDevice(task.stream, &device) != cudaSuccess) {
    return fail(ncclInvalidArgument, "this is no stream");
  }
  if (device != communicator.device()) return fail(ncclInvalidArgument, "the stream is another device's");
  if (task.count == 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  if (reads_send_buffer(communicator, task))
    result = check_buffer(communicator, task.send, "the send buffer");
  if (result == ncclSuccess && writes_receive_buffer(communicator, task)) {
    result = check_buffer(communicator, task.receive, "the receive buffer");
  }
  return result;
}

/// Puts what `task.op` means into `task.factor`; the operator may be destroyed before it runs.
ncclResult_t resolve_operator(Communicator& communicator, Task& task) {
  if (task.op == ncclAvg && !is_integer(task.type)) {
    task.factor = {true, task.type, nullptr, 1.0 / communicator.ranks()};
    task.op = ncclSum;
  }
  if (task.op < ncclNumOps) return ncclSuccess;
  const auto number = static_cast<std::size_t>(task.op) - ncclNumOps;
  if (number >= communicator.operators().size() || !communicator.operators()[number].in_use) {
    return fail(ncclInvalidArgument, "this is no operator of the communicator");
  }
  task.factor = communicator.operators()[number];
  if (task.factor.type != task.type) return fail(ncclInvalidArgument, "the operator is for another type");
  task.op = ncclSum;
  return ncclSuccess;
}

ncclResult_t issue(ncclComm_t handle, Task task) {
  const CommunicatorPointer communicator = Communicator::of(handle);
  if (communicator == nullptr) {
    return fail_group(fail(ncclInvalidArgument, "this is no communicator, or one that is gone"));
  }
  if (communicator->error() != ncclSuccess) return fail_group(communicator->error());
  if (!communicator->ready()) {
    return fail_group(fail(ncclInvalidArgument,
                           "the communicator is still being made or has work to start: ask "
                           "ncclCommGetAsyncError until it says ncclSuccess"));
  }
  ncclResult_t result = check(*communicator, task);
  if (result == ncclSuccess) result = resolve_operator(*communicator, task);
  if (result != ncclSuccess) return fail_group(result);
  return submit(communicator, task);
}

}  // namespace

extern "C" {

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, {Kind::kSend, stream, send, nullptr, count, type, peer});
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, {Kind::kReceive, stream, nullptr, receive, count, type, peer});
}
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kAllReduce, stream, send, receive, count, type, 0, op});
}
ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kReduce, stream, send, receive, count, type, root, op});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kReduceScatter, stream, send, receive, count, type, 0, op});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kBroadcast, stream, send, receive, count, type, root});
}
ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kAllGather, stream, send, receive, count, type});
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kAllToAll, stream, send, receive, count, type});
}
ncclResult_t ncclGather(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kGather, stream, send, receive, count, type, root});
}
ncclResult_t ncclScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, {Kind::kScatter, stream, send, receive, count, type, root});
}

}  // extern "C"

ONEBIT_PROFILING_NAME(ncclSend);
ONEBIT_PROFILING_NAME(ncclRecv);
ONEBIT_PROFILING_NAME(ncclAllReduce);
ONEBIT_PROFILING_NAME(ncclReduce);
ONEBIT_PROFILING_NAME(ncclReduceScatter);
ONEBIT_PROFILING_NAME(ncclBroadcast);
ONEBIT_PROFILING_NAME(ncclBcast);
ONEBIT_PROFILING_NAME(ncclAllGather);
ONEBIT_PROFILING_NAME(ncclAlltoAll);
ONEBIT_PROFILING_NAME(ncclGather);
ONEBIT_PROFILING_NAME(ncclScatter);
