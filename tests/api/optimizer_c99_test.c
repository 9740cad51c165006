/* A C99 program that uses every function of optimizer.h with one rank. exports_test.sh checks that none is
 * left out. */
#define _POSIX_C_SOURCE 200809L
#include <onebit/optimizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(int holds, int line, const char* what) {
  if (holds) return;
  fprintf(stderr, "optimizer_c99_test.c:%d: not so: %s (last error: %s)\n", line, what,
          onebitGetLastError(NULL));
  ++failures;
}
#define EXPECT(condition) expect((condition) != 0, __LINE__, #condition)
#define OK(call) EXPECT((call) == onebitSuccess)
#define REFUSED(call, word) \
  EXPECT((call) == onebitInvalidArgument && strstr(onebitGetLastError(NULL), word) != NULL)

#define COUNT 1000

/* Minimises sum w^2 / 2, of which w is the gradient. */
static void train(onebitComm_t comm, const onebitOptimizerConfig_t* config) {
  static float w[COUNT];
  static float state[COUNT];
  const onebitTensor_t tensor = {"w", w, COUNT, onebitFloat32, onebitFloat32, 0, NULL};
  const void* gradients[1];
  char directory[] = "/tmp/onebit-c99-XXXXXX";
  char command[64];
  onebitOptimizer_t optimizer = NULL;
  onebitOptimizerInfo_t info;
  double coefficient = 0;
  double worker = 1, owner = 1;
  float before;
  int i;
  int skipped = 1;
  for (i = 0; i < COUNT; ++i) w[i] = 1.0f + (float)i / COUNT;
  gradients[0] = w;
  OK(onebitOptimizerCreate(&optimizer, config, &tensor, 1, comm));
  OK(onebitOptimizerSetLearningRate(optimizer, 0, 0.02));
  for (i = 0; i < 20; ++i) OK(onebitOptimizerStep(optimizer, gradients, &skipped));
  EXPECT(!skipped && w[0] < 1.0f);
  if (config->type == onebitOneBitLamb) OK(onebitOptimizerFreeze(optimizer));
  info.size = sizeof info;
  OK(onebitOptimizerGetInfo(optimizer, &info));
  EXPECT(info.steps == 20 && info.skipped_steps == 0 && info.in_common == 1 && info.memory > 0);
  EXPECT(info.compressed == (config->type == onebitOneBitLamb));
  EXPECT(info.full_bytes == 0 && info.compressed_bytes == 0 &&
         info.fp32_bytes == 0); /* one rank sends none */
  OK(onebitOptimizerGetState(optimizer, 0, "exp_avg", state, COUNT));
  EXPECT(state[0] > 0);
  OK(onebitOptimizerGetCoefficient(optimizer, 0, &coefficient));
  EXPECT(coefficient > 0);
  OK(onebitOptimizerResidualNorm(optimizer, &worker, &owner));
  EXPECT(worker == 0 && owner == 0); /* one rank loses nothing */

  EXPECT(mkdtemp(directory) != NULL);
  OK(onebitOptimizerSave(optimizer, directory));
  OK(onebitOptimizerStep(optimizer, gradients, NULL));
  before = w[0];
  w[0] = 17;
  OK(onebitOptimizerLoad(optimizer, directory));
  OK(onebitOptimizerStep(optimizer, gradients, NULL));
  EXPECT(w[0] == before);
  OK(onebitOptimizerLoadStep(optimizer, directory, 20));
  EXPECT(onebitOptimizerLoadStep(optimizer, directory, 19) == onebitDataError);
  EXPECT(strstr(onebitGetLastError(NULL), "step 20 of rank 0") != NULL);
  OK(onebitOptimizerSaveWhole(optimizer, directory));
  OK(onebitOptimizerLoad(optimizer, directory));
  OK(onebitOptimizerStep(optimizer, gradients, NULL));
  EXPECT(w[0] == before);
  sprintf(command, "rm -r %s", directory);
  EXPECT(system(command) == 0);
  OK(onebitOptimizerDestroy(optimizer));
}

/* Without a GPU it is refused in words. */
static void on_device(void) {
  onebitDevice_t device = ONEBIT_DEVICE_INITIALIZER;
  onebitOptimizerConfig_t config;
  onebitOptimizer_t optimizer = NULL;
  OK(onebitOptimizerConfigInit(onebitOneBitLamb, &config));
  REFUSED(onebitOptimizerCreateOnDevice(&optimizer, &config, NULL, 0, NULL), "device");
  REFUSED(onebitOptimizerCreateOnDevice(NULL, &config, NULL, 0, &device), "optimizer");
  device.settings = "ONEBIT_CUDA_LIBRARY=/nowhere/libonebit-cuda.so";
  EXPECT(onebitOptimizerCreateOnDevice(&optimizer, &config, NULL, 0, &device) != onebitSuccess);
  EXPECT(strstr(onebitGetLastError(NULL), "CUDA") != NULL && optimizer == NULL);
  device.size = 1;
  REFUSED(onebitOptimizerCreateOnDevice(&optimizer, &config, NULL, 0, &device), "size");
}

static void errors(onebitComm_t comm) {
  float w = 1;
  onebitTensor_t tensor = {"w", &w, 1, onebitFloat32, onebitFloat32, 0, NULL};
  onebitOptimizerConfig_t config;
  onebitOptimizer_t optimizer = NULL;
  EXPECT(onebitOptimizerConfigInit((onebitOptimizerType_t)77, &config) == onebitInvalidArgument);
  EXPECT(onebitOptimizerConfigInit(onebitAdam, NULL) == onebitInvalidArgument);
  OK(onebitOptimizerConfigInit(onebitAdam, &config));
  config.group.beta1 = 1;
  REFUSED(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, comm), "betas[0]");
  config.group.beta1 = 0.9;
  tensor.datatype = onebitInt32;
  REFUSED(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, comm), "'w'");
  tensor.datatype = onebitFloat32;
  config.size = 1;
  REFUSED(onebitOptimizerCreate(&optimizer, &config, &tensor, 1, comm), "config.size");
  REFUSED(onebitOptimizerParseConfig("{\"type\": \"OneBitLamb\", \"params\": {\"lr\": 1, \"warmup\": 3}}",
                                     &config),
          "warmup");
  EXPECT(onebitOptimizerStep(NULL, NULL, NULL) == onebitInvalidArgument);
  OK(onebitOptimizerDestroy(NULL));
}

int main(void) {
  onebitUniqueId id;
  onebitComm_t comm = NULL;
  onebitOptimizerConfig_t config;
  setenv("ONEBIT_SOCKET_IFNAME", "lo", 1);
  OK(onebitGetUniqueId(&id));
  OK(onebitCommInitRank(&comm, 1, id, 0));
  OK(onebitOptimizerConfigInit(onebitAdam, &config));
  train(comm, &config);
  OK(onebitOptimizerParseConfig(
      "{\"type\": \"OneBitLamb\", \"params\": {\"lr\": 0.01, \"freeze_step\": 1000}}", &config));
  EXPECT(config.type == onebitOneBitLamb && config.freeze_step == 1000 && config.group.lr == 0.01);
  train(comm, &config);
  on_device();
  errors(comm);
  OK(onebitCommDestroy(comm));
  return failures == 0 ? 0 : 1;
}
