#include "transport/ucx/ucx_library.h"

#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "base/log.h"

namespace onebit::transport {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

// UCX's levels of its log, by their values, and what a handler returns: "this line needs no other handler".
constexpr int kUcxError = 1;
constexpr int kUcxInfo = 4;
constexpr int kStop = 0;
using UcxLogHandler = int (*)(const char* file, unsigned line, const char* function, int level,
                              const void* component, const char* format, va_list arguments);

/// An error of UCX becomes that of a request or an endpoint, which says it to the caller, too.
int log_of_ucx(const char* /*file*/, unsigned /*line*/, const char* function, int level,
               const void* /*component*/, const char* format, va_list arguments) {
  const LogLevel ours = level <= kUcxError  ? LogLevel::kWarn
                        : level <= kUcxInfo ? LogLevel::kInfo
                                            : LogLevel::kTrace;
  if (ours > log_level()) return kStop;
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  log_line(ours, formatted("UCX: {}: {}", function, text.data()));
  return kStop;
}

Result<UcxLibrary> open_and_prepare() {
  const bool of_the_job = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) != nullptr;
  auto opened = open_ucx_library(kLibrary);
  if (!opened.ok() || of_the_job || std::getenv("UCX_LOG_FILE") != nullptr) return opened;
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  const auto push = reinterpret_cast<void (*)(UcxLogHandler)>(::dlsym(handle, "ucs_log_push_handler"));
  if (push != nullptr) push(log_of_ucx);
  return opened;
}

}  // namespace

Result<UcxLibrary> open_ucx_library(const char* name) {
  // Never closed: it has threads and hooks of its own.
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status::error(Code::kSystemError, "{}: install libucx0 (UCX), or set ONEBIT_TRANSPORT=auto",
                         ::dlerror());
  }
  UcxLibrary made{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  find(made.get_version, "ucp_get_version");
  if (missing == nullptr) {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    made.get_version(&major, &minor, &release);
    if (major < UCP_API_MAJOR || (major == UCP_API_MAJOR && minor < UCP_API_MINOR)) {
      return Status::error(Code::kSystemError,
                           "{} is UCX {}.{}.{}, which is too old: this build of onebit needs {}.{} or newer; "
                           "install it (libucx0), or set ONEBIT_TRANSPORT=auto",
                           name, major, minor, release, UCP_API_MAJOR, UCP_API_MINOR);
    }
  }
  find(made.config_read, "ucp_config_read");
  find(made.config_modify, "ucp_config_modify");
  find(made.config_release, "ucp_config_release");
  find(made.init_version, "ucp_init_version");
  find(made.cleanup, "ucp_cleanup");
  find(made.worker_create, "ucp_worker_create");
  find(made.worker_destroy, "ucp_worker_destroy");
  find(made.worker_progress, "ucp_worker_progress");
  find(made.worker_arm, "ucp_worker_arm");
  find(made.worker_get_efd, "ucp_worker_get_efd");
  find(made.worker_get_address, "ucp_worker_get_address");
  find(made.worker_release_address, "ucp_worker_release_address");
  find(made.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  find(made.ep_create, "ucp_ep_create");
  find(made.ep_close, "ucp_ep_close_nbx");
  find(made.am_send, "ucp_am_send_nbx");
  find(made.am_recv_data, "ucp_am_recv_data_nbx");
  find(made.am_data_release, "ucp_am_data_release");
  find(made.request_free, "ucp_request_free");
  find(made.request_check_status, "ucp_request_check_status");
  find(made.status_string, "ucs_status_string");
  if (missing != nullptr) {
    return Status::error(
        Code::kSystemError,
        "{} has no {}: it is another library or another version of UCX; install libucx0, or set "
        "ONEBIT_TRANSPORT=auto",
        name, missing);
  }
  return made;
}

Result<const UcxLibrary*> ucx_library() {
  // Never destroyed: threads of the job may still send when static objects are torn down.
  static const auto* const opened = new Result<UcxLibrary>(open_and_prepare());
  if (!opened->ok()) return opened->status();
  return &**opened;
}

}  // namespace onebit::transport
