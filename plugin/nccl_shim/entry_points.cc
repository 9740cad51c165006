// The functions of NCCL that the shim takes the place of, and those by which a job tags tensors.
//
// Each finds the NCCL that it was called for and does at least what that one does. Without ONEBIT_COMPRESS
// nothing else happens. No exception leaves. Threads: as NCCL's.
#include <dlfcn.h>
#include <onebit/onebit.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <span>

#include "api/tags.h"
#include "base/log.h"
#include "group.h"
#include "unique_id.h"

namespace {

using namespace onebit;  // NOLINT(google-build-using-namespace): the functions below stand outside of it
using namespace onebit::shim;  // NOLINT(google-build-using-namespace)
using nccl::Comm;
using nccl::kInternalError;
using nccl::kInvalidUsage;
using nccl::kSuccess;
using nccl::kSystemError;

/// A value of ncclConfig_t that was not set.
constexpr int kUndefinedInt = -2147483647 - 1;

/// body(real) with the NCCL that the call was meant for.
template <typename Body>
nccl::Result forward(const void* caller, Body body) noexcept {
  try {
    const RealNccl* const real = real_nccl(caller);
    return real == nullptr ? kSystemError : body(*real);
  } catch (const std::exception& exception) {
    log(LogLevel::kWarn, "libonebit-nccl: {}", exception.what());
    return kInternalError;
  }
}

/// function(arguments...), where NCCL has it: a job may find here what an older NCCL lacks.
template <typename... Parameters>
nccl::Result call(nccl::Result (*function)(Parameters...), Parameters... arguments) {
  return function == nullptr ? kInvalidUsage : function(arguments...);
}

/// kSuccess if calls pass through, or all is there to compress them.
nccl::Result check_settings() {
  if (!is_active() || shim_settings().ok()) return kSuccess;
  log(LogLevel::kWarn, "ONEBIT_COMPRESS is set, but {}", shim_settings().status().message());
  return kInvalidUsage;
}

std::string name_in(const Config* config) {
  // ncclConfig_t has the name since 2.27; unset it is null.
  constexpr unsigned kFirstVersionWithName = 22700;
  const bool has_name =
      config != nullptr && config->version >= kFirstVersionWithName && config->name != nullptr;
  return has_name ? config->name : "world";
}

bool is_blocking_in(const Config* config, bool otherwise) {
  return config == nullptr || config->blocking == kUndefinedInt ? otherwise : config->blocking != 0;
}

/// While a thread is in one of NCCL's functions that make communicators: what NCCL itself calls then is its
/// own.
thread_local bool is_inside_nccl = false;

/// make(real) creates `count` communicators at `comms`, which are then ours too.
template <typename Make>
nccl::Result create(const void* caller, Comm* comms, int count, const Config* config, bool is_blocking,
                    bool is_everywhere, Make make) {
  return forward(caller, [&](const RealNccl& real) {
    if (const nccl::Result result = check_settings(); result != kSuccess) return result;
    is_inside_nccl = true;
    const nccl::Result result = make(real);
    is_inside_nccl = false;
    const bool is_blocking_too = is_blocking_in(config, is_blocking);
    const bool is_made = result == kSuccess || (result == nccl::kInProgress && !is_blocking_too);
    if (!is_active() || !is_made) return result;
    std::vector<NewCommunicator> made;
    for (int i = 0; i < count; ++i)
      made.push_back({&real, comms + i, {name_in(config), is_blocking_too, is_everywhere}});
    const nccl::Result taken = Group::current().take_over(std::move(made));
    return taken == kSuccess ? result : taken;
  });
}

/// The same for communicators whose ranks meet by unique ids.
template <typename Make>
nccl::Result create_by_id(const void* caller, Comm* comm, std::span<const UniqueId> ids, const Config* config,
                          Make make) {
  const bool are_sealed = std::all_of(ids.begin(), ids.end(), is_sealed);
  if (are_sealed && !is_active()) {
    log(LogLevel::kWarn,
        "the process that made this communicator's unique id has ONEBIT_COMPRESS set and this one has not: "
        "set it "
        "alike on all ranks");
    return kInvalidUsage;
  }
  return create(caller, comm, 1, config, true, are_sealed, [&](const RealNccl& real) {
    std::vector<UniqueId> own;
    std::transform(ids.begin(), ids.end(), std::back_inserter(own), opened);
    return make(real, own.data());
  });
}

nccl::Result reduce(const void* caller, const Arguments& a, Comm comm) {
  return forward(caller, [&](const RealNccl& real) {
    const std::shared_ptr<Communicator> communicator = is_active() ? find(comm) : nullptr;
    if (communicator == nullptr) {
      const auto function = a.scatters ? real.functions.reduce_scatter : real.functions.all_reduce;
      return function(a.send, a.receive, a.count, a.type, a.op, comm, a.stream);
    }
    QueuedCall queued{communicator, a, {}};
    if (!communicator->decide(a, &queued.tag)) return communicator->call_real(a);
    if (!communicator->accepts_buffers(a)) return nccl::kInvalidArgument;
    return Group::current().run(std::move(queued));
  });
}

/// Ends a communicator by `function`; our part of it ends after NCCL's, and after the last call in it.
nccl::Result end(const void* caller, Comm comm, nccl::Result (*nccl::Functions::*function)(Comm),
                 bool aborts) {
  return forward(caller, [&](const RealNccl& real) {
    const std::shared_ptr<Communicator> communicator = is_active() ? remove(comm) : nullptr;
    if (communicator == nullptr) return call(real.functions.*function, comm);
    if (aborts) {
      communicator->abort();
    } else {
      communicator->log_summary();
      communicator->close();
    }
    return call(communicator->real().functions.*function, comm);
  });
}

/// Says what is wrong, and gives the call to libonebit.so too, if the job has it.
template <typename Function, typename... Args>
onebitResult_t answer(const char* name, const Status& status, Function*, Args... args) {
  if (!status.ok()) {
    log(LogLevel::kWarn, "{}: {}", name, status.message());
    return static_cast<onebitResult_t>(status.code());
  }
  const auto next = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  return next == nullptr ? onebitSuccess : next(args...);
}

}  // namespace

#define ONEBIT_NCCL extern "C" __attribute__((visibility("default"))) nccl::Result
#define ONEBIT_CALLER __builtin_return_address(0)

ONEBIT_NCCL ncclAllReduce(const void* send, void* receive, std::size_t count, nccl::Type type, nccl::Op op,
                          Comm comm, cudaStream_t stream) {
  return reduce(ONEBIT_CALLER, {false, send, receive, count, type, op, stream}, comm);
}

ONEBIT_NCCL ncclReduceScatter(const void* send, void* receive, std::size_t count, nccl::Type type,
                              nccl::Op op, Comm comm, cudaStream_t stream) {
  return reduce(ONEBIT_CALLER, {true, send, receive, count, type, op, stream}, comm);
}

ONEBIT_NCCL ncclGroupStart() {
  return forward(ONEBIT_CALLER, [](const RealNccl& real) {
    const nccl::Result result = real.functions.group_start();
    if (result == kSuccess && is_active()) Group::current().start();
    return result;
  });
}

ONEBIT_NCCL ncclGroupEnd() {
  return forward(ONEBIT_CALLER, [](const RealNccl& real) {
    const nccl::Result result = real.functions.group_end();
    return is_active() ? Group::current().end(result) : result;
  });
}

ONEBIT_NCCL ncclGetUniqueId(UniqueId* id) {
  return forward(ONEBIT_CALLER, [&](const RealNccl& real) {
    const nccl::Result result = call(real.get_unique_id, id);
    if (result == kSuccess && is_active() && !is_inside_nccl) seal(*id);
    return result;
  });
}

ONEBIT_NCCL ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  return create_by_id(ONEBIT_CALLER, comm, {&id, 1}, nullptr, [&](const RealNccl& real, UniqueId* own) {
    return call(real.init_rank, comm, ranks, *own, rank);
  });
}

ONEBIT_NCCL ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  return create_by_id(ONEBIT_CALLER, comm, {&id, 1}, config, [&](const RealNccl& real, UniqueId* own) {
    return call(real.init_rank_config, comm, ranks, *own, rank, config);
  });
}

ONEBIT_NCCL ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int count, UniqueId* ids,
                                     Config* config) {
  const std::span all(ids, ids == nullptr || count < 0 ? 0 : static_cast<std::size_t>(count));
  return create_by_id(ONEBIT_CALLER, comm, all, config, [&](const RealNccl& real, UniqueId* own) {
    return call(real.init_rank_scalable, comm, ranks, rank, count, own, config);
  });
}

ONEBIT_NCCL ncclCommInitAll(Comm* comms, int devices, const int* list) {
  return create(ONEBIT_CALLER, comms, devices, nullptr, true, true,
                [&](const RealNccl& real) { return call(real.init_all, comms, devices, list); });
}

ONEBIT_NCCL ncclCommSplit(Comm comm, int color, int key, Comm* made, Config* config) {
  const auto parent = is_active() ? find(comm) : nullptr;
  return create(ONEBIT_CALLER, made, 1, config, parent == nullptr || parent->is_blocking(),
                parent != nullptr && parent->is_everywhere(),
                [&](const RealNccl& real) { return call(real.split, comm, color, key, made, config); });
}

ONEBIT_NCCL ncclCommDestroy(Comm comm) {
  return end(ONEBIT_CALLER, comm, &nccl::Functions::destroy, false);
}

ONEBIT_NCCL ncclCommAbort(Comm comm) {
  return end(ONEBIT_CALLER, comm, &nccl::Functions::abort, true);
}

ONEBIT_NCCL ncclCommGetAsyncError(Comm comm, nccl::Result* error) {
  return forward(ONEBIT_CALLER, [&](const RealNccl& real) {
    const auto communicator = is_active() && !is_inside_nccl ? find(comm) : nullptr;
    return communicator == nullptr ? call(real.functions.async_error, comm, error)
                                   : communicator->async_error(error);
  });
}

// ---- tags: for jobs that find these by dlsym ----

onebitResult_t onebitTagBuffer(const void* base, std::size_t bytes, const char* tag) {
  const Status status =
      tag == nullptr ? Status(Code::kInvalidArgument, "the tag is null") : api::tag_buffer(base, bytes, tag);
  return answer("onebitTagBuffer", status, &onebitTagBuffer, base, bytes, tag);
}

onebitResult_t onebitUntagBuffer(const void* base) {
  return answer("onebitUntagBuffer", api::untag_buffer(base), &onebitUntagBuffer, base);
}

onebitResult_t onebitScopeBegin(const char* tag) {
  const Status status =
      tag == nullptr ? Status(Code::kInvalidArgument, "the tag is null") : api::begin_scope(tag);
  return answer("onebitScopeBegin", status, &onebitScopeBegin, tag);
}

onebitResult_t onebitScopeEnd() {
  return answer("onebitScopeEnd", api::end_scope(), &onebitScopeEnd);
}
