/* A library for LD_PRELOAD that spoils results on rank 1: how the test sees that onebit_allreduce_perf finds
 * faults. WRONG_SUM=exact spoils calls without a tag, WRONG_SUM=1bit those with one: the lowest bit of the
 * first byte. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <onebit/onebit.h>
#include <stdlib.h>
#include <string.h>

typedef onebitResult_t (*AllReduce)(const void*, void*, size_t, onebitDataType_t, onebitRedOp_t, const char*,
                                    onebitComm_t, void*);

onebitResult_t onebitAllReduce(const void* sendbuff, void* recvbuff, size_t count, onebitDataType_t datatype,
                               onebitRedOp_t op, const char* tag, onebitComm_t comm, void* stream) {
  AllReduce real;
  *(void**)&real = dlsym(RTLD_NEXT, "onebitAllReduce");
  const onebitResult_t result = real(sendbuff, recvbuff, count, datatype, op, tag, comm, stream);
  const char* spoiled = getenv("WRONG_SUM");
  const char* rank = getenv("RANK");
  const char* mode = tag == NULL ? "exact" : "1bit";
  if (spoiled != NULL && strcmp(spoiled, mode) == 0 && rank != NULL && strcmp(rank, "1") == 0 && count > 0) {
    *(unsigned char*)recvbuff ^= 1;
  }
  return result;
}
