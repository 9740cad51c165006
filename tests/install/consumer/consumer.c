/* Sums the ranks' numbers 1, 2 ... over the ranks, through onebit.h. */
#include <onebit/onebit.h>
#include <stdio.h>

int main(void) {
  onebitComm_t comm;
  int rank = 0;
  int ranks = 0;
  int32_t value;
  if (onebitCommInitEnv(&comm, NULL) != onebitSuccess) {
    fprintf(stderr, "%s\n", onebitGetLastError(NULL));
    return 1;
  }
  onebitCommUserRank(comm, &rank);
  onebitCommCount(comm, &ranks);
  value = rank + 1;
  if (onebitAllReduce(&value, &value, 1, onebitInt32, onebitSum, NULL, comm, NULL) != onebitSuccess) {
    fprintf(stderr, "%s\n", onebitGetLastError(comm));
    return 1;
  }
  printf("rank %d of %d: sum %d\n", rank, ranks, (int)value);
  onebitCommDestroy(comm);
  return value == ranks * (ranks + 1) / 2 ? 0 : 1;
}
