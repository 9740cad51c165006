#include "transport/verbs/verbs_library.h"

#include <dlfcn.h>

#include "base/log.h"

namespace onebit::transport {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

Result<VerbsLibrary> open_and_prepare() {
  ONEBIT_ASSIGN_OR_RETURN(const VerbsLibrary opened, open_verbs_library(kLibrary));
  // Keeps a child's writes away from registered pages, where the kernel does not do so itself.
  if (const int error = opened.fork_init(); error != 0) {
    log(LogLevel::kWarn, "{}; a fork() may corrupt what is being sent",
        Status::system(error, "ibv_fork_init").message());
  }
  return opened;
}

}  // namespace

Result<VerbsLibrary> open_verbs_library(const char* name) {
  // Never closed: its devices' providers have state of their own.
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status::error(Code::kSystemError,
                         "{}: install libibverbs1 and ibverbs-providers, or set ONEBIT_TRANSPORT=tcp",
                         ::dlerror());
  }
  VerbsLibrary made{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  find(made.get_device_list, "ibv_get_device_list");
  find(made.free_device_list, "ibv_free_device_list");
  find(made.get_device_name, "ibv_get_device_name");
  find(made.open_device, "ibv_open_device");
  find(made.close_device, "ibv_close_device");
  find(made.query_device, "ibv_query_device");
  find(made.query_port, "ibv_query_port");
  find(made.query_gid, "ibv_query_gid");
  find(made.alloc_pd, "ibv_alloc_pd");
  find(made.dealloc_pd, "ibv_dealloc_pd");
  find(made.reg_mr, "ibv_reg_mr");
  find(made.dereg_mr, "ibv_dereg_mr");
  find(made.create_comp_channel, "ibv_create_comp_channel");
  find(made.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(made.create_cq, "ibv_create_cq");
  find(made.destroy_cq, "ibv_destroy_cq");
  find(made.get_cq_event, "ibv_get_cq_event");
  find(made.ack_cq_events, "ibv_ack_cq_events");
  find(made.create_qp, "ibv_create_qp");
  find(made.modify_qp, "ibv_modify_qp");
  find(made.destroy_qp, "ibv_destroy_qp");
  find(made.get_async_event, "ibv_get_async_event");
  find(made.ack_async_event, "ibv_ack_async_event");
  find(made.fork_init, "ibv_fork_init");
  find(made.wc_status_str, "ibv_wc_status_str");
  find(made.event_type_str, "ibv_event_type_str");
  made.reg_dmabuf_mr = reinterpret_cast<decltype(made.reg_dmabuf_mr)>(::dlsym(handle, "ibv_reg_dmabuf_mr"));
  if (missing != nullptr) {
    return Status::error(
        Code::kSystemError,
        "{} has no {}: it is too old or another library; install libibverbs1 of rdma-core, or set "
        "ONEBIT_TRANSPORT=tcp",
        name, missing);
  }
  return made;
}

Result<const VerbsLibrary*> verbs_library() {
  // Never destroyed: threads of the job may still send when static objects are torn down.
  static const auto* const opened = new Result<VerbsLibrary>(open_and_prepare());
  if (!opened->ok()) return opened->status();
  return &**opened;
}

}  // namespace onebit::transport
