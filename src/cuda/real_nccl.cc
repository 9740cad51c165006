#include "cuda/real_nccl.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/log.h"

namespace onebit::nccl {
namespace {

constexpr const char* kProbe = "pncclAllReduce";

/// The object that holds `address`.
link_map* object_of(const void* address) {
  Dl_info info;
  void* map = nullptr;
  if (dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0) return nullptr;
  return static_cast<link_map*>(map);
}

/// A handle of a loaded object; the main program's name is empty.
void* reopen(const char* name) {
  return dlopen(name[0] == '\0' ? nullptr : name, RTLD_LAZY | RTLD_NOLOAD);
}

/// What `handle` and the objects that it needs have under that name; the object is held from now on.
void* probe_in(void* handle) {
  if (handle == nullptr) return nullptr;
  void* const found = dlsym(handle, kProbe);
  if (found == nullptr) dlclose(handle);
  return found;
}

void* probe_any_object() {
  void* found = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<void**>(result) = probe_in(reopen(info->dlpi_name));
        return *static_cast<void**>(result) != nullptr ? 1 : 0;
      },
      &found);
  return found;
}

void* probe_at(const char* path) {
  void* const found = probe_in(dlopen(path, RTLD_LAZY | RTLD_LOCAL));
  if (found == nullptr)
    log(LogLevel::kWarn, "ONEBIT_NCCL_LIBRARY={}: it cannot be opened or is no NCCL", path);
  return found;
}

void* find_probe(const void* caller) {
  if (const char* const path = std::getenv("ONEBIT_NCCL_LIBRARY"); path != nullptr && *path != '\0') {
    return probe_at(path);
  }
  if (const link_map* const object = object_of(caller); object != nullptr) {
    if (void* const found = probe_in(reopen(object->l_name)); found != nullptr) return found;
  }
  if (void* const found = dlsym(RTLD_NEXT, kProbe); found != nullptr) return found;
  return probe_any_object();
}

template <typename Function>
void resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
}

const RealNccl* make_table(void* handle) {
  auto* const table = new RealNccl;
  Functions& f = table->functions;
  resolve(handle, "pncclGroupStart", f.group_start);
  resolve(handle, "pncclGroupEnd", f.group_end);
  resolve(handle, "pncclSend", f.send);
  resolve(handle, "pncclRecv", f.receive);
  resolve(handle, kProbe, f.all_reduce);
  resolve(handle, "pncclReduceScatter", f.reduce_scatter);
  resolve(handle, "pncclAllGather", f.all_gather);
  resolve(handle, "pncclReduce", f.reduce);
  resolve(handle, "pncclBroadcast", f.broadcast);
  resolve(handle, "pncclCommSplit", f.split);
  resolve(handle, "pncclCommDestroy", f.destroy);
  resolve(handle, "pncclCommAbort", f.abort);
  resolve(handle, "pncclCommGetAsyncError", f.async_error);
  resolve(handle, "pncclGetErrorString", f.error_string);
  resolve(handle, "pncclGetUniqueId", table->get_unique_id);
  resolve(handle, "pncclCommInitRank", table->init_rank);
  resolve(handle, "pncclCommInitRankConfig", table->init_rank_config);
  resolve(handle, "pncclCommInitRankScalable", table->init_rank_scalable);
  resolve(handle, "pncclCommInitAll", table->init_all);
  resolve(handle, "pncclCommSplit", table->split);
  resolve(handle, "pncclCommCount", table->count);
  resolve(handle, "pncclCommUserRank", table->user_rank);
  resolve(handle, "pncclCommCuDevice", table->device);
  Result (*get_version)(int*) = nullptr;
  resolve(handle, "pncclGetVersion", get_version);
  if (get_version != nullptr) get_version(&table->version);
  return table;
}

/// The table of the library that has `probe`.
const RealNccl* table_of(const void* probe) {
  static std::mutex mutex;
  static auto* const tables = new std::map<link_map*, const RealNccl*>;
  link_map* const object = object_of(probe);
  const std::lock_guard lock(mutex);
  const RealNccl*& table = (*tables)[object];
  if (table == nullptr) table = make_table(reopen(object->l_name));
  return table;
}

const RealNccl* find(const void* caller) {
  const void* const probe = find_probe(caller);
  if (probe == nullptr) {
    static std::atomic<bool> said = false;
    if (!said.exchange(true)) {
      log(LogLevel::kWarn,
          "an NCCL call, but no library in this process has {}: set ONEBIT_NCCL_LIBRARY to the path of NCCL",
          kProbe);
    }
    return nullptr;
  }
  return table_of(probe);
}

}  // namespace

const RealNccl* real_nccl_at(const char* path) {
  const void* const probe = probe_at(path);
  return probe == nullptr ? nullptr : table_of(probe);
}

const RealNccl* real_nccl(const void* caller) {
  // Calls come from few places, over and over.
  struct Known {
    const void* caller = nullptr;
    const RealNccl* table = nullptr;
  };
  thread_local std::array<Known, 16> known;
  Known& entry = known[reinterpret_cast<std::uintptr_t>(caller) / 4 % known.size()];
  if (entry.caller != caller || entry.table == nullptr) entry = {caller, find(caller)};
  return entry.table;
}

}  // namespace onebit::nccl
