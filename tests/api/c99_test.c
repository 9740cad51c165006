/* A C99 program that uses every function of onebit.h with one rank. exports_test.sh checks that none is left
 * out. */
#define _POSIX_C_SOURCE 200809L
#include <onebit/onebit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures = 0;

static void expect(int holds, int line, const char* what) {
  if (holds) return;
  fprintf(stderr, "c99_test.c:%d: not so: %s (last error: %s)\n", line, what, onebitGetLastError(NULL));
  ++failures;
}
#define EXPECT(condition) expect((condition) != 0, __LINE__, #condition)
#define OK(call) EXPECT((call) == onebitSuccess)

#define COUNT 100000

static void general(void) {
  int version = 0;
  char start[8];
  size_t needed = 0;
  char* text;
  OK(onebitGetVersion(&version));
  EXPECT(version == ONEBIT_VERSION);
  EXPECT(strlen(onebitGetErrorString(onebitSuccess)) > 0);
  EXPECT(strlen(onebitGetErrorString(onebitDataError)) > 0);
  EXPECT(strlen(onebitGetErrorString((onebitResult_t)12345)) > 0);

  OK(onebitGetSettings(start, sizeof start, &needed));
  EXPECT(needed > sizeof start);
  EXPECT(strlen(start) < sizeof start);
  text = malloc(needed);
  OK(onebitGetSettings(text, needed, NULL));
  EXPECT(strlen(text) == needed - 1);
  EXPECT(strstr(text, "ONEBIT_BLOCK=") != NULL);
  free(text);
}

static void errors(void) {
  onebitComm_t comm = NULL;
  onebitUniqueId id;
  OK(onebitGetUniqueId(&id));
  EXPECT(onebitCommInitRank(&comm, 0, id, 0) != onebitSuccess);
  EXPECT(strlen(onebitGetLastError(NULL)) > 0);
  EXPECT(onebitCommInitRank(&comm, 1, id, 1) != onebitSuccess);
  EXPECT(onebitCommInitRank(NULL, 1, id, 0) != onebitSuccess);
  EXPECT(onebitGetVersion(NULL) != onebitSuccess);
  EXPECT(onebitBarrier(NULL) != onebitSuccess);
  OK(onebitCommDestroy(NULL));
}

static void collectives(onebitComm_t comm) {
  static float send[COUNT];
  static float receive[COUNT];
  int i;
  int equal = 1;
  for (i = 0; i < COUNT; ++i) send[i] = i % 3 == 0 ? 1.0F : -1.0F;

  OK(onebitAllReduce(send, receive, COUNT, onebitFloat32, onebitSum, NULL, comm, NULL));
  for (i = 0; i < COUNT; ++i) equal = equal && receive[i] == send[i];
  EXPECT(equal);
  memset(receive, 0, sizeof receive);
  OK(onebitAllReduce(send, receive, COUNT, onebitFloat32, onebitAvg, "gradient", comm, NULL));
  for (i = 0; i < COUNT; ++i) equal = equal && receive[i] == send[i]; /* 1 bit carries +-1 without loss */
  EXPECT(equal);
  OK(onebitAllReduce(send, send, COUNT, onebitFloat32, onebitSum, NULL, comm, NULL));
  OK(onebitAllReduce(NULL, NULL, 0, onebitFloat32, onebitSum, NULL, comm, NULL));
  EXPECT(onebitAllReduce(NULL, receive, COUNT, onebitFloat32, onebitSum, NULL, comm, NULL) != onebitSuccess);

  memset(receive, 0, sizeof receive);
  OK(onebitBroadcast(send, receive, COUNT, onebitFloat32, 0, comm, NULL));
  EXPECT(memcmp(send, receive, sizeof send) == 0);
  memset(receive, 0, sizeof receive);
  OK(onebitAllGather(send, receive, COUNT, onebitFloat32, comm, NULL));
  EXPECT(memcmp(send, receive, sizeof send) == 0);
  OK(onebitBarrier(comm));
}

static void tags(onebitComm_t comm) {
  static float buffer[COUNT];
  char why[256] = "";
  OK(onebitExplain(buffer, COUNT, onebitFloat32, onebitSum, NULL, comm, why, sizeof why));
  EXPECT(strncmp(why, "exact", 5) == 0);
  OK(onebitTagBuffer(buffer, sizeof buffer, "weights"));
  EXPECT(onebitTagBuffer(buffer + 10, 40, "other") == onebitInvalidUsage);
  OK(onebitExplain(buffer, COUNT, onebitFloat32, onebitSum, NULL, comm, why, sizeof why));
  EXPECT(strlen(why) > 0);
  OK(onebitUntagBuffer(buffer));
  OK(onebitScopeBegin("layer"));
  OK(onebitAllReduce(buffer, buffer, COUNT, onebitFloat32, onebitSum, NULL, comm, NULL));
  OK(onebitScopeEnd());
}

static void residuals(onebitComm_t comm) {
  char directory[] = "/tmp/onebit-c99-XXXXXX";
  char command[64];
  size_t before = 0;
  size_t bytes = 0;
  onebitStats_t stats;
  double worker = -1, owner = -1;
  EXPECT(mkdtemp(directory) != NULL);
  OK(onebitResidualMemory(comm, NULL, &before));
  OK(onebitResidualSave(comm, directory));
  OK(onebitResidualReset(comm, NULL));
  OK(onebitResidualMemory(comm, NULL, &bytes));
  EXPECT(bytes == 0);
  OK(onebitResidualLoad(comm, directory));
  OK(onebitResidualMemory(comm, NULL, &bytes));
  EXPECT(bytes == before);
  OK(onebitResidualNorm(comm, NULL, &worker, &owner));
  EXPECT(worker >= 0 && owner >= 0);
  OK(onebitResidualReset(comm, "gradient"));
  snprintf(command, sizeof command, "rm -r %s", directory);
  EXPECT(system(command) == 0);

  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  OK(onebitCommGetStats(comm, &stats));
  EXPECT(stats.exact_calls + stats.compressed_calls >= 4);
}

static void abortion(onebitComm_t comm) {
  onebitResult_t state = onebitInternalError;
  float value = 1;
  OK(onebitCommGetAsyncError(comm, &state));
  EXPECT(state == onebitSuccess);
  OK(onebitCommAbort(comm));
  EXPECT(onebitAllReduce(&value, &value, 1, onebitFloat32, onebitSum, NULL, comm, NULL) == onebitAborted);
  OK(onebitCommGetAsyncError(comm, &state));
  EXPECT(state == onebitAborted);
}

int main(void) {
  onebitComm_t comm = NULL;
  onebitUniqueId id;
  onebitConfig_t config = ONEBIT_CONFIG_INITIALIZER;
  int number = -1;

  general();
  errors();

  OK(onebitGetUniqueId(&id));
  config.name = "c99";
  config.settings = "ONEBIT_MIN_SIZE=0\nONEBIT_BLOCK=256";
  OK(onebitCommInitRankConfig(&comm, 1, id, 0, &config));
  if (comm == NULL) return 1;
  OK(onebitCommCount(comm, &number));
  EXPECT(number == 1);
  OK(onebitCommUserRank(comm, &number));
  EXPECT(number == 0);
  collectives(comm);
  tags(comm);
  residuals(comm);
  abortion(comm);
  OK(onebitCommDestroy(comm));

  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  comm = NULL;
  OK(onebitCommInitEnv(&comm, NULL));
  if (comm != NULL) {
    collectives(comm);
    OK(onebitCommDestroy(comm));
  }
  if (failures == 0) puts("all of onebit.h used from C99, as it must be");
  return failures == 0 ? 0 : 1;
}
