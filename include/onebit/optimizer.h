/**
 * @file optimizer.h
 * @brief The optimizers of onebit: 1-bit LAMB, 1-bit Adam and 0/1 Adam, which exchange one bit an element,
 * and LAMB and Adam, from which they come. C99.
 *
 * An optimizer belongs to a communicator. It averages the gradients of all ranks itself: give it each rank's
 * own gradient, neither summed nor averaged, once it is unscaled. All ranks make the same calls in the same
 * order. Every rank has the same parameters, bit for bit, after each step (0/1 Adam: after each sync;
 * onebitOptimizerInfo_t::in_common).
 *
 * Hyper-parameters have DeepSpeed's names, and a DeepSpeed section is read as it is
 * (onebitOptimizerParseConfig). docs/optimizers.md has the equations, how to choose freeze_step, and what
 * deepspeed_compat means.
 *
 * Memory, bytes an element beside parameters and gradients: Adam and LAMB 12; 1-bit Adam 16 + 4/ranks; 1-bit
 * LAMB and 0/1 Adam 20 to 24 + 4/ranks; 4 more for 16-bit parameters. One of these arrays (4 bytes) makes a
 * step that can be taken back: the momentum is computed into it, exchanged there, and then the two arrays
 * change places. A step that fails has changed neither parameters nor state.
 *
 * An optimizer is in host memory and exchanges over an onebitComm_t (onebitOptimizerCreate), or in a GPU's
 * memory, where it exchanges over NCCL (onebitOptimizerCreateOnDevice). The numbers are the same to the bit
 * where the exact sums of both are; docs/optimizers.md says when. Files of one are read by the other.
 *
 * Threads: an optimizer is used by one thread at a time, the one that uses its communicator. Destroy it
 * before its communicator.
 */
#ifndef ONEBIT_OPTIMIZER_H_
#define ONEBIT_OPTIMIZER_H_

#include <onebit/onebit.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  onebitLamb = 1,
  onebitAdam = 2, /**< with decoupled weight decay (AdamW) */
  onebitOneBitLamb = 3,
  onebitOneBitAdam = 4,
  onebitZeroOneAdam = 5
} onebitOptimizerType_t;

/** freeze_step: end the warm-up when the variance has become stable (1-bit Adam, section 7.1). */
#define ONEBIT_FREEZE_AUTO (-1)

/** Hyper-parameters that parameter groups can have their own of. */
typedef struct {
  double lr;           /**< learning rate, from 0; see onebitOptimizerSetLearningRate */
  double beta1, beta2; /**< from 0 to below 1 */
  double eps;          /**< from 1.2e-38 to 1; added to the root of the variance */
  double weight_decay; /**< from 0; decoupled */
  double max_coeff;    /**< LAMB: above 0; the largest ||w|| / ||u|| */
  double min_coeff;    /**< LAMB: from 0 to max_coeff */
} onebitGroup_t;

/** What an optimizer is and does; initialise with onebitOptimizerConfigInit or onebitOptimizerParseConfig. */
typedef struct {
  size_t size; /**< sizeof(onebitOptimizerConfig_t), for compatibility with later versions */
  onebitOptimizerType_t type;
  const char* name;    /**< in messages and file names; NULL: "optimizer". Must differ where files must */
  onebitGroup_t group; /**< of all tensors, when there are no groups */
  const onebitGroup_t* groups; /**< NULL, or `ngroups` of them; tensors name theirs by number */
  size_t ngroups;
  int bias_correction;     /**< 1 (default) or 0; the papers of the 1-bit ones have none, nor has
                              deepspeed_compat. See docs/optimizers.md */
  int64_t freeze_step;     /**< OneBitLamb, OneBitAdam: steps of the warm-up, from 1, or ONEBIT_FREEZE_AUTO */
  double coeff_beta;       /**< OneBitLamb: from 0 to below 1; averages the coefficients of the warm-up */
  double factor_max;       /**< OneBitLamb without norm_factor: above 0 */
  double factor_min;       /**< OneBitLamb without norm_factor: above 0, up to factor_max */
  double factor_threshold; /**< OneBitLamb: above 0 and below 1; how much the factor may change in a step */
  int64_t var_freeze_step; /**< ZeroOneAdam: from 1; steps until the variance is frozen */
  int64_t
      var_update_scaler; /**< ZeroOneAdam: from 1; the interval of variance updates doubles after so many */
  int64_t local_step_scaler;  /**< ZeroOneAdam: from 1; the interval of syncs doubles after so many steps */
  int64_t local_step_clipper; /**< ZeroOneAdam: from 1; the largest interval of syncs */
  double
      gradient_clipping; /**< 0: none. Else the largest norm of the mean gradient over all tensors; once ranks
                            only know their own gradients, the same factor on all, from the root mean square
                            of the ranks' norms and its ratio to the norm of the mean in the warm-up */
  int deepspeed_compat;  /**< 1: DeepSpeed's numbers, with its faults. See docs/optimizers.md */
  int bound_moves;       /**< the 1-bit ones: 1 (default) keeps |m/(sqrt(v)+eps)| within what Adam's can be,
                            which is not in the papers; 0: as they have it. See docs/optimizers.md */
  int norm_factor; /**< the 1-bit ones: 1 (default): in the compressed stage OneBitLamb's coefficients follow
                      ||w|| and ||m||, the frozen variance of OneBitAdam and ZeroOneAdam the norm of the
                      gradients; 0: as the papers have it. See docs/optimizers.md */
} onebitOptimizerConfig_t;

/** A tensor of parameters. The memory stays the caller's, and must stay while the optimizer lives. */
typedef struct {
  const char* name; /**< unique, the same on all ranks; NULL: "tensor NUMBER" */
  void* parameters; /**< `count` elements, the same values on all ranks */
  size_t count;     /**< may be 0 */
  onebitDataType_t
      datatype; /**< onebitFloat32; or onebitFloat16, onebitBfloat16: an fp32 master copy is kept */
  onebitDataType_t gradient_datatype; /**< one of the same */
  size_t group;                       /**< the number of its group */
  const uint8_t* mask; /**< NULL, or `count` bytes that must stay: where 0, gradients count as 0 and there is
                          no momentum (weight decay acts all the same) */
} onebitTensor_t;

/** Where an optimizer in a GPU's memory is; initialise with ONEBIT_DEVICE_INITIALIZER. */
typedef struct {
  size_t size;     /**< sizeof(onebitDevice_t), for compatibility with later versions */
  void* nccl_comm; /**< the ncclComm_t (blocking, NCCL 2.7 or later) whose ranks step together, on its device;
                      NULL: one rank, on the current device. It stays the caller's, who issues nothing else
                      on it while the optimizer is in a call */
  void* stream;    /**< the cudaStream_t, of that device, that gradients are ready on and parameters are
                      written on; NULL: the default stream */
  const char* settings; /**< "NAME=VALUE" lines which win over the environment, separated by '\n'; NULL: none.
                           ONEBIT_BLOCK, ONEBIT_SCALE, ONEBIT_CHUNK and ONEBIT_TIMEOUT count, and where
                           libraries are: ONEBIT_CUDA_LIBRARY, ONEBIT_NCCL_LIBRARY */
} onebitDevice_t;

#define ONEBIT_DEVICE_INITIALIZER \
  { sizeof(onebitDevice_t), NULL, NULL, NULL }

/** Where an optimizer stands. */
typedef struct {
  size_t size;           /**< in: sizeof(onebitOptimizerInfo_t) */
  int64_t steps;         /**< taken, skipped ones not counted */
  int64_t skipped_steps; /**< as a gradient of some rank was not finite, or above 2^40 */
  int compressed;        /**< 1 in the compressed stage (ZeroOneAdam: once the variance is frozen) */
  int in_common;         /**< 1 when all ranks have the same parameters now */
  uint64_t memory;       /**< bytes of all state and residuals on this rank */
} onebitOptimizerInfo_t;

/** An optimizer: tensors, their state, residuals, and where it stands. */
typedef struct onebitOptimizer* onebitOptimizer_t;

/** Fills `config` with the defaults of a type: DeepSpeed's, but local_step_scaler 32768. */
ONEBIT_API onebitResult_t onebitOptimizerConfigInit(onebitOptimizerType_t type,
                                                    onebitOptimizerConfig_t* config);
/**
 * Fills `config` from a DeepSpeed section: {"type": "OneBitLamb", "params": {"lr": 1e-3, ...}}. Types
 * OneBitLamb, OneBitAdam, ZeroOneAdam, Lamb and Adam, in any case. params may also hold "deepspeed_compat",
 * "gradient_clipping" and "freeze_step": "auto".
 * @return onebitInvalidArgument for JSON that cannot be read, and for a key that is unknown or would have no
 * effect, with what to do about it
 */
ONEBIT_API onebitResult_t onebitOptimizerParseConfig(const char* json, onebitOptimizerConfig_t* config);
/**
 * Makes an optimizer of `ntensors` tensors. `config` and `tensors` are copied. Not collective.
 * @return onebitInvalidArgument naming the hyper-parameter and its range, or the tensor, as one in a GPU's
 * memory
 */
ONEBIT_API onebitResult_t onebitOptimizerCreate(onebitOptimizer_t* optimizer,
                                                const onebitOptimizerConfig_t* config,
                                                const onebitTensor_t* tensors, size_t ntensors,
                                                onebitComm_t comm);
/**
 * As onebitOptimizerCreate, in a GPU's memory: parameters, masks and gradients are pointers to memory of the
 * communicator's device (or managed memory), aligned to their elements, and so is all state, made here; steps
 * allocate none. Collective over the ranks of the communicator: if one cannot make it, none does.
 *
 * A step puts its passes and NCCL's operations on the stream, in order behind what the stream has, and waits
 * on the host where the host must know: whether any rank skips, and whether the exchange has succeeded. When
 * onebitOptimizerStep returns the last passes may still run: work on the same stream sees the new parameters.
 * Every wait ends after ONEBIT_TIMEOUT at most. After an error of the exchange NCCL may hold the stream up
 * until ncclCommAbort; saving works all the same. Not within ncclGroupStart, nor while the stream is
 * captured.
 *
 * Destroy the optimizer before the communicator and the stream.
 * @return onebitInvalidUsage when this library was built without CUDA or no NCCL is in the process;
 * onebitSystemError when libonebit-cuda.so cannot be opened or memory is short; onebitInvalidArgument naming
 * the tensor that is in host memory or another device's; onebitRemoteError naming the rank that could not
 */
ONEBIT_API onebitResult_t onebitOptimizerCreateOnDevice(onebitOptimizer_t* optimizer,
                                                        const onebitOptimizerConfig_t* config,
                                                        const onebitTensor_t* tensors, size_t ntensors,
                                                        const onebitDevice_t* device);
/** Frees an optimizer. Not collective. NULL does nothing. */
ONEBIT_API onebitResult_t onebitOptimizerDestroy(onebitOptimizer_t optimizer);

/**
 * Takes one step: collective. In the first one ranks compare their tensors and hyper-parameters.
 * @param gradients a pointer for each tensor, in their order, to `count` elements of gradient_datatype; NULL
 * for a tensor without a gradient, which counts as zeros. They are read only.
 * @param skipped if not NULL, 1 when the step was skipped by all ranks, as some rank had a gradient that is
 * not finite (or above 2^40); nothing has changed then
 * @return onebitInvalidUsage naming the tensor, or the step and learning rate, in which ranks differ. On any
 * error parameters and state are those before the step; onebitOptimizerSave can save them
 */
ONEBIT_API onebitResult_t onebitOptimizerStep(onebitOptimizer_t optimizer, const void* const* gradients,
                                              int* skipped);
/** The learning rate of a group from the next step on. The same on all ranks. */
ONEBIT_API onebitResult_t onebitOptimizerSetLearningRate(onebitOptimizer_t optimizer, size_t group,
                                                         double lr);
/**
 * Ends the warm-up of OneBitLamb or OneBitAdam now: the next step is compressed. All ranks, between the same
 * steps.
 * @return onebitInvalidUsage before the first step, in the compressed stage, and for other types
 */
ONEBIT_API onebitResult_t onebitOptimizerFreeze(onebitOptimizer_t optimizer);

/** Fills `info` up to its `size`. */
ONEBIT_API onebitResult_t onebitOptimizerGetInfo(onebitOptimizer_t optimizer, onebitOptimizerInfo_t* info);
/** The L2 norms of the residuals on this rank, as onebitResidualNorm has them; 0 for Adam and LAMB. */
ONEBIT_API onebitResult_t onebitOptimizerResidualNorm(onebitOptimizer_t optimizer, double* worker,
                                                      double* owner);
/**
 * Copies an array of a tensor's state.
 * @param name exp_avg (momentum), exp_avg_sq (variance), exp_avg_sq_fresh (OneBitLamb without norm_factor),
 * momentum_accumulator (ZeroOneAdam)
 * @param values receives `count` numbers, which is the tensor's count; always host memory
 */
ONEBIT_API onebitResult_t onebitOptimizerGetState(onebitOptimizer_t optimizer, size_t tensor,
                                                  const char* name, float* values, size_t count);
/**
 * What a tensor's learning rate was multiplied with in the last step: LAMB's coefficient; of the compressed
 * stage of 1-bit and 0/1 Adam what norm_factor comes to; else 1.
 */
ONEBIT_API onebitResult_t onebitOptimizerGetCoefficient(onebitOptimizer_t optimizer, size_t tensor,
                                                        double* value);

/**
 * Saves this rank's part of the state to a file of its own in `directory` (made if missing): its shard of
 * parameters, momentum and variance, its residuals, and where the optimizer stands. The old file stays unless
 * the new one is complete. A local call, after the same step on every rank. Works after a failure of the
 * communicator too.
 */
ONEBIT_API onebitResult_t onebitOptimizerSave(onebitOptimizer_t optimizer, const char* directory);
/**
 * As onebitOptimizerSave, but the file is whole: it has all parameters, momentum and variance, not a shard.
 * It can be loaded without the files of the other ranks, whose residuals then count as 0. For programs in
 * which one rank writes the checkpoint.
 */
ONEBIT_API onebitResult_t onebitOptimizerSaveWhole(onebitOptimizer_t optimizer, const char* directory);
/**
 * Sets parameters and state to the newest that the same or another number of ranks saved; the files of all of
 * them must be readable here. The same number of ranks goes on bit for bit. Collective: all ranks load what
 * was saved at one moment, or none loads anything. On an error nothing has changed.
 * @return onebitDataError naming the file and what is wrong: damaged, of another optimizer, of other tensors,
 * of another step than the rest; or the rank that could not load
 */
ONEBIT_API onebitResult_t onebitOptimizerLoad(onebitOptimizer_t optimizer, const char* directory);

#ifdef __cplusplus
}
#endif

#endif /* ONEBIT_OPTIMIZER_H_ */
