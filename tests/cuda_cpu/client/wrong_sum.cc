// Stands in front of ncclAllReduce and leaves the last element out: what onebit_nccl_client has to notice.
#include <nccl.h>

extern "C" ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return pncclAllReduce(send, receive, count > 0 ? count - 1 : 0, type, op, comm, stream);
}
