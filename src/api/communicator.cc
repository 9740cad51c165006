// The C API: communicators, their counters and their residuals.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "api/handle.h"
#include "api/result.h"
#include "base/log.h"
#include "base/settings.h"
#include "bootstrap/launcher.h"
#include "bootstrap/rendezvous.h"

using onebit::Code;
using onebit::Settings;
using onebit::Status;
using onebit::api::guarded;
using onebit::api::not_null;
using onebit::bootstrap::Rendezvous;
using onebit::collective::Communicator;

static_assert(sizeof(onebitUniqueId) == sizeof(onebit::bootstrap::UniqueId));

namespace {

std::uint64_t nanoseconds(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(time.count());
}

onebit::Result<Settings> settings_of(const onebitConfig_t* config) {
  ONEBIT_ASSIGN_OR_RETURN(auto settings, Settings::from_environment());
  if (config != nullptr) {
    if (config->size != sizeof(onebitConfig_t)) {
      return Status::error(Code::kInvalidArgument,
                           "config.size is {}, this library knows {}: start from "
                           "ONEBIT_CONFIG_INITIALIZER",
                           config->size, sizeof(onebitConfig_t));
    }
    if (config->settings != nullptr)
      ONEBIT_RETURN_IF_ERROR(onebit::apply_settings(settings, config->settings));
  }
  ONEBIT_RETURN_IF_ERROR(Communicator::check_settings(settings));
  onebit::set_log_level(settings.debug);
  onebit::warn_of_unknown_variables();
  return settings;
}

/// The rest of every way to a communicator, once the ranks have met.
Status finish_init(onebitComm_t* comm, std::unique_ptr<Rendezvous> rendezvous, const onebitConfig_t* config,
                   const Settings& settings) {
  const bool named = config != nullptr && config->name != nullptr && *config->name != '\0';
  auto made = std::make_unique<onebitComm>();
  ONEBIT_ASSIGN_OR_RETURN(made->communicator, Communicator::create(std::move(rendezvous),
                                                                   named ? config->name : "world", settings));
  *comm = made.release();
  return Status();
}

/// Ok for a communicator that is no forked child's inheritance, also when a failure has broken it.
Status in_own_process(onebitComm_t comm) {
  ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
  return comm->communicator->in_own_process();
}

}  // namespace

onebitResult_t onebitGetUniqueId(onebitUniqueId* id) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(id, "id"));
    ONEBIT_ASSIGN_OR_RETURN(const auto settings, settings_of(nullptr));
    ONEBIT_ASSIGN_OR_RETURN(const auto made, onebit::bootstrap::create_unique_id(settings));
    std::memcpy(id->internal, made.bytes.data(), sizeof id->internal);
    return Status();
  });
}

onebitResult_t onebitCommInitRank(onebitComm_t* comm, int nranks, onebitUniqueId id, int rank) {
  return onebitCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

onebitResult_t onebitCommInitRankConfig(onebitComm_t* comm, int nranks, onebitUniqueId id, int rank,
                                        const onebitConfig_t* config) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    *comm = nullptr;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
      return Status::error(Code::kInvalidArgument, "rank {} of {}: ranks are numbered from 0 to nranks - 1",
                           rank, nranks);
    }
    ONEBIT_ASSIGN_OR_RETURN(const auto settings, settings_of(config));
    onebit::bootstrap::UniqueId unique_id;
    std::memcpy(unique_id.bytes.data(), id.internal, sizeof id.internal);
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(unique_id, rank, nranks, settings));
    return finish_init(comm, std::move(rendezvous), config, settings);
  });
}

onebitResult_t onebitCommInitEnv(onebitComm_t* comm, const onebitConfig_t* config) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    *comm = nullptr;
    ONEBIT_ASSIGN_OR_RETURN(const auto settings, settings_of(config));
    ONEBIT_ASSIGN_OR_RETURN(const auto launch, onebit::bootstrap::detect_launch(settings));
    ONEBIT_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::join(launch, settings));
    return finish_init(comm, std::move(rendezvous), config, settings);
  });
}

onebitResult_t onebitCommDestroy(onebitComm_t comm) {
  return guarded([&] {
    const std::unique_ptr<onebitComm> owned(comm);
    return Status();
  });
}

onebitResult_t onebitCommAbort(onebitComm_t comm) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(in_own_process(comm));
    comm->communicator->abort();
    return Status();
  });
}

onebitResult_t onebitCommGetAsyncError(onebitComm_t comm, onebitResult_t* result) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(in_own_process(comm));
    ONEBIT_RETURN_IF_ERROR(not_null(result, "result"));
    *result = static_cast<onebitResult_t>(comm->communicator->async_error().code());
    return Status();
  });
}

onebitResult_t onebitCommCount(onebitComm_t comm, int* count) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(in_own_process(comm));
    ONEBIT_RETURN_IF_ERROR(not_null(count, "count"));
    *count = static_cast<int>(comm->communicator->ranks());
    return Status();
  });
}

onebitResult_t onebitCommUserRank(onebitComm_t comm, int* rank) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(in_own_process(comm));
    ONEBIT_RETURN_IF_ERROR(not_null(rank, "rank"));
    *rank = static_cast<int>(comm->communicator->rank());
    return Status();
  });
}

onebitResult_t onebitCommGetStats(onebitComm_t comm, onebitStats_t* stats) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(not_null(stats, "stats"));
    ONEBIT_ASSIGN_OR_RETURN(const auto now, comm->communicator->statistics());
    onebitStats_t full{};
    full.size = std::min(stats->size, sizeof full);
    full.exact_calls = now.exact_calls;
    full.compressed_calls = now.compressed_calls;
    full.reduced_bytes = now.reduced_bytes;
    full.wire_bytes_sent = now.wire_bytes_sent;
    full.wire_bytes_received = now.wire_bytes_received;
    full.residual_bytes = now.residual_bytes;
    full.compressed_ns = nanoseconds(now.compressed.call);
    full.encode_ns = nanoseconds(now.compressed.encode);
    full.average_ns = nanoseconds(now.compressed.average);
    full.decode_ns = nanoseconds(now.compressed.decode);
    full.waiting_ns = nanoseconds(now.compressed.waiting);
    std::memcpy(stats, &full, full.size);
    return Status();
  });
}

onebitResult_t onebitResidualSave(onebitComm_t comm, const char* directory) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return comm->communicator->save_residuals(directory);
  });
}

onebitResult_t onebitResidualLoad(onebitComm_t comm, const char* directory) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(not_null(directory, "directory"));
    return comm->communicator->load_residuals(directory);
  });
}

onebitResult_t onebitResidualReset(onebitComm_t comm, const char* tag) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    return comm->communicator->reset_residuals(tag == nullptr ? "" : tag);
  });
}

onebitResult_t onebitResidualMemory(onebitComm_t comm, const char* tag, size_t* bytes) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(not_null(bytes, "bytes"));
    ONEBIT_ASSIGN_OR_RETURN(*bytes, comm->communicator->residual_memory(tag == nullptr ? "" : tag));
    return Status();
  });
}

onebitResult_t onebitResidualNorm(onebitComm_t comm, const char* tag, double* worker, double* owner) {
  return guarded([&] {
    ONEBIT_RETURN_IF_ERROR(not_null(comm, "comm"));
    ONEBIT_RETURN_IF_ERROR(not_null(worker, "worker"));
    ONEBIT_RETURN_IF_ERROR(not_null(owner, "owner"));
    ONEBIT_ASSIGN_OR_RETURN(const auto squares,
                            comm->communicator->residual_squares(tag == nullptr ? "" : tag));
    *worker = std::sqrt(squares.worker);
    *owner = std::sqrt(squares.owner);
    return Status();
  });
}
