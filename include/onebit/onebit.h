/**
 * @file onebit.h
 * @brief The public API of onebit: allreduce in error-compensated 1 bit, and exact, between the ranks of a
 * job. C99.
 *
 * Argument order and names are NCCL's where there is a counterpart. Buffers are host memory; calls block
 * until the result is there. Every function returns a result code, prints nothing, never exits the process,
 * and lets no exception out; onebitGetLastError() says in words what failed, with whom, and what to set.
 *
 * Threads: a communicator is used by one thread at a time (a second one gets onebitInvalidUsage), but
 * different communicators by different threads at once. onebitCommAbort() and onebitCommGetAsyncError() may
 * be called from any thread at any time until onebitCommDestroy() is called. All ranks of a communicator make
 * the same collective calls in the same order.
 *
 * After fork() the child may not use its parent's communicators: calls return onebitInvalidUsage, and
 * destroying one frees memory without disturbing the parent.
 *
 * Settings are environment variables, see docs/settings.md, read when a communicator is created.
 */
#ifndef ONEBIT_ONEBIT_H_
#define ONEBIT_ONEBIT_H_

#include <stddef.h>
#include <stdint.h>

#define ONEBIT_MAJOR 0
#define ONEBIT_MINOR 1
#define ONEBIT_PATCH 0
/** Major, minor and patch as one number: 10000 * major + 100 * minor + patch. */
#define ONEBIT_VERSION (10000 * ONEBIT_MAJOR + 100 * ONEBIT_MINOR + ONEBIT_PATCH)

#if defined(_WIN32)
#error "onebit supports Linux only"
#endif
#define ONEBIT_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/** What a call came to. */
typedef enum {
  onebitSuccess = 0,
  onebitSystemError = 1,   /**< the operating system or the network refused something */
  onebitInternalError = 2, /**< a fault in onebit itself */
  onebitInvalidArgument =
      3,                  /**< an argument or a setting is out of its range; the communicator stays usable */
  onebitInvalidUsage = 4, /**< calls or settings do not fit together, on this rank or between ranks */
  onebitRemoteError = 5,  /**< a peer died, closed its connection or reported a failure */
  onebitTimeout = 6, /**< no progress for ONEBIT_TIMEOUT, or set-up took longer than ONEBIT_INIT_TIMEOUT */
  onebitAborted = 7, /**< onebitCommAbort() was called on this communicator */
  onebitDataError =
      8 /**< a file is truncated, corrupt, of another version or of another communicator's shape */
} onebitResult_t;

/** Element types, with NCCL's numbers. */
typedef enum {
  onebitUint8 = 1, /**< broadcast and allgather only */
  onebitInt32 = 2,
  onebitInt64 = 4,
  onebitFloat16 = 6,
  onebitFloat32 = 7,
  onebitFloat64 = 8,
  onebitBfloat16 = 9
} onebitDataType_t;

/** Reductions, with NCCL's numbers. */
typedef enum {
  onebitSum = 0, /**< integers wrap around; fp16 and bf16 are summed in fp32 and rounded once */
  onebitAvg = 4  /**< the sum times 1/ranks, rounded to the element's precision class; floating types only */
} onebitRedOp_t;

/** A communicator: this process's place among the ranks, its connections, and the residuals of its tags. */
typedef struct onebitComm* onebitComm_t;

/** Where the ranks of a communicator meet and how they prove that they belong: opaque, to be carried to all
 * ranks. */
typedef struct {
  char internal[128];
} onebitUniqueId;

/** Options of a communicator; initialise with ONEBIT_CONFIG_INITIALIZER. */
typedef struct {
  size_t size;      /**< sizeof(onebitConfig_t), for compatibility with later versions */
  const char* name; /**< the communicator's name in messages and rules (comm=...); NULL: "world" */
  const char*
      settings; /**< "NAME=VALUE" lines which win over the environment, separated by '\n'; NULL: none */
} onebitConfig_t;

#define ONEBIT_CONFIG_INITIALIZER \
  { sizeof(onebitConfig_t), NULL, NULL }

/** Counters of a communicator since its creation. */
typedef struct {
  size_t size;                  /**< in: sizeof(onebitStats_t) */
  uint64_t exact_calls;         /**< allreduces that went the exact way */
  uint64_t compressed_calls;    /**< allreduces in 1 bit */
  uint64_t reduced_bytes;       /**< bytes of all buffers allreduced, before compression */
  uint64_t wire_bytes_sent;     /**< bytes written to the network by this rank, headers included */
  uint64_t wire_bytes_received; /**< bytes read from it */
  uint64_t residual_bytes;      /**< memory of all residuals now */
  uint64_t compressed_ns;       /**< nanoseconds that the calls in 1 bit took; those below are of them */
  uint64_t encode_ns;           /**< encoding, added up over the compute threads */
  uint64_t average_ns;          /**< averaging as an owner and encoding the result, likewise */
  uint64_t decode_ns;           /**< decoding, likewise */
  uint64_t
      waiting_ns; /**< with nothing to compute: for data that are on the wire or of ranks that are late */
} onebitStats_t;

/* ---- general ---- */

/** ONEBIT_VERSION of the library that is loaded. */
ONEBIT_API onebitResult_t onebitGetVersion(int* version);
/** A short text for a result code. Never NULL. */
ONEBIT_API const char* onebitGetErrorString(onebitResult_t result);
/**
 * What went wrong in the last failed call of this thread, in words; "" if none has failed. Valid until the
 * thread's next call.
 * @param comm may be NULL; else, when this thread had no failure, the communicator's asynchronous error.
 */
ONEBIT_API const char* onebitGetLastError(onebitComm_t comm);
/**
 * The settings that a communicator created now would use: "NAME=value  # origin" lines, secrets hidden.
 * @param text receives up to `size` bytes, always ended by 0; @param needed if not NULL, the size it takes in
 * full. Returns onebitInvalidArgument when a variable cannot be parsed.
 */
ONEBIT_API onebitResult_t onebitGetSettings(char* text, size_t size, size_t* needed);

/* ---- communicators ---- */

/** Makes a unique id and opens the socket where ranks will meet. To be called in the process of the later
 * rank 0. */
ONEBIT_API onebitResult_t onebitGetUniqueId(onebitUniqueId* id);
/**
 * Creates a communicator of `nranks` ranks; collective over all ranks that hold `id`. Blocks until all have
 * come, at most ONEBIT_INIT_TIMEOUT. All ranks must have equal codec and rule settings: a difference is
 * onebitInvalidUsage naming it.
 */
ONEBIT_API onebitResult_t onebitCommInitRank(onebitComm_t* comm, int nranks, onebitUniqueId id, int rank);
/** As onebitCommInitRank, with options; `config` may be NULL. */
ONEBIT_API onebitResult_t onebitCommInitRankConfig(onebitComm_t* comm, int nranks, onebitUniqueId id,
                                                   int rank, const onebitConfig_t* config);
/**
 * Creates a communicator of all ranks of the job from the launcher's environment: RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT (torchrun), or the variables of Open MPI, PMI or Slurm. `config` may be NULL.
 * May be called again for another communicator, in the same order on all ranks.
 */
ONEBIT_API onebitResult_t onebitCommInitEnv(onebitComm_t* comm, const onebitConfig_t* config);
/**
 * Ends a communicator in order: sends what is pending (bounded in time), closes, frees. Not collective. NULL
 * does nothing. No other thread may be using it.
 */
ONEBIT_API onebitResult_t onebitCommDestroy(onebitComm_t comm);
/**
 * Makes the call that another thread has in progress on `comm`, and all later ones, fail with onebitAborted,
 * and tells the peers. Returns at once. Unlike ncclCommAbort it does not free the communicator:
 * onebitCommDestroy() does.
 */
ONEBIT_API onebitResult_t onebitCommAbort(onebitComm_t comm);
/** The first failure that has made `comm` unusable; onebitSuccess while it is usable. */
ONEBIT_API onebitResult_t onebitCommGetAsyncError(onebitComm_t comm, onebitResult_t* result);
/** The number of ranks. */
ONEBIT_API onebitResult_t onebitCommCount(onebitComm_t comm, int* count);
/** This process's rank. */
ONEBIT_API onebitResult_t onebitCommUserRank(onebitComm_t comm, int* rank);
/** Fills `stats` up to its `size`. */
ONEBIT_API onebitResult_t onebitCommGetStats(onebitComm_t comm, onebitStats_t* stats);

/* ---- collectives ---- */

/**
 * recvbuff[i] = the reduction of sendbuff[i] of all ranks; every rank gets the same bytes.
 *
 * With a tag (and the rules of ONEBIT_COMPRESS and ONEBIT_MIN_SIZE allowing) the exchange is in 1 bit with
 * error compensation: what is lost in this call is added in the next call of the same tag. Source: 1-bit Adam
 * (arXiv 2102.02888), with a scale a block. Without a tag the result is exact: summed in an order
 * that the number of ranks and the size fix, so it does not depend on timing.
 *
 * @param sendbuff,recvbuff `count` elements each; may be equal (in place), must not overlap otherwise
 * @param count elements; 0 returns at once
 * @param tag the name of the tensor, equal on all ranks, up to 255 bytes; NULL or "" for the tag of the scope
 * or of the registered buffer, if any
 * @param stream must be NULL (host memory)
 * @return onebitInvalidUsage, and the communicator is unusable, when ranks differ in count, type, op or tag
 */
ONEBIT_API onebitResult_t onebitAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                          onebitDataType_t datatype, onebitRedOp_t op, const char* tag,
                                          onebitComm_t comm, void* stream);
/** recvbuff of every rank = sendbuff of `root` (`count` elements). In place where sendbuff == recvbuff. */
ONEBIT_API onebitResult_t onebitBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                                          onebitDataType_t datatype, int root, onebitComm_t comm,
                                          void* stream);
/**
 * recvbuff (`sendcount` * nranks elements) = the sendbuffs of all ranks in rank order. In place where
 * sendbuff == recvbuff + rank * sendcount elements.
 */
ONEBIT_API onebitResult_t onebitAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                          onebitDataType_t datatype, onebitComm_t comm, void* stream);
/** Returns when all ranks have called it. */
ONEBIT_API onebitResult_t onebitBarrier(onebitComm_t comm);

/* ---- tags and decisions ---- */

/**
 * Gives calls whose sendbuff lies in [base, base + bytes) the tag `tag` ("tag+OFFSET" for a byte offset above
 * 0). For the whole process. A range that overlaps a registered one is onebitInvalidUsage.
 */
ONEBIT_API onebitResult_t onebitTagBuffer(const void* base, size_t bytes, const char* tag);
/** Forgets the range that starts at `base`. */
ONEBIT_API onebitResult_t onebitUntagBuffer(const void* base);
/**
 * From here to onebitScopeEnd() untagged allreduces of this thread have the tag `tag`; the second in a scope
 * "tag#1", the third "tag#2". Scopes nest, the inner one counts.
 */
ONEBIT_API onebitResult_t onebitScopeBegin(const char* tag);
ONEBIT_API onebitResult_t onebitScopeEnd(void);
/**
 * Says how onebitAllReduce with these arguments would go, and why: "1bit: rule 'all'", "exact: not tagged",
 * "exact: 4096 bytes are fewer than ONEBIT_MIN_SIZE=65536". Communicates nothing, changes nothing.
 */
ONEBIT_API onebitResult_t onebitExplain(const void* sendbuff, size_t count, onebitDataType_t datatype,
                                        onebitRedOp_t op, const char* tag, onebitComm_t comm, char* text,
                                        size_t size);

/* ---- residuals ---- */

/**
 * Saves this rank's residuals of all tags to a file of its own in `directory` (made if missing). The old file
 * stays unless the new one is complete. A local call; every rank makes it between the same two collective
 * calls. A directory for each checkpoint keeps an older one whole when a save is cut short.
 */
ONEBIT_API onebitResult_t onebitResidualSave(onebitComm_t comm, const char* directory);
/**
 * Loads the newest that a communicator of the same or another number of ranks saved in `directory`; replaces
 * all residuals. Collective: all ranks load what was saved at one moment, or none loads anything and each
 * gets an error. For another number of ranks every file of the old ranks must be readable here: worker errors
 * are summed into the new ranks' share, owner errors are cut anew by element. On an error the residuals stay
 * as they were, and the communicator can be used on.
 * @return onebitDataError naming the file and what is wrong with it, or the rank that could not load
 */
ONEBIT_API onebitResult_t onebitResidualLoad(onebitComm_t comm, const char* directory);
/** Drops the residuals of `tag`; of all tags when NULL. Every rank must do it between the same calls. */
ONEBIT_API onebitResult_t onebitResidualReset(onebitComm_t comm, const char* tag);
/** Bytes of memory that the residuals of `tag` (all when NULL) take on this rank. */
ONEBIT_API onebitResult_t onebitResidualMemory(onebitComm_t comm, const char* tag, size_t* bytes);
/**
 * The L2 norms of the residuals of `tag` (of all together when NULL) on this rank: of what its own tensors
 * are owed (worker), and of the means of the partition that it owns (owner). Reads them all: for reports.
 * Those that grow from call to call say that a tensor does not stand 1 bit.
 */
ONEBIT_API onebitResult_t onebitResidualNorm(onebitComm_t comm, const char* tag, double* worker,
                                             double* owner);

#ifdef __cplusplus
}
#endif

#endif /* ONEBIT_ONEBIT_H_ */
