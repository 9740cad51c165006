// libucp of UCX, opened at run time: the functions that the transport calls.
//
// Nothing here is linked against it: a machine without it uses another transport. What UCX has to say goes to
// the library's log instead of to stdout, unless the job says where (UCX_LOG_FILE) or has UCX of its own.
// Threads: any.
#pragma once

#include <ucp/api/ucp.h>

#include "base/status.h"

namespace onebit::transport {

struct UcxLibrary {
  decltype(&ucp_get_version) get_version;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close;
  decltype(&ucp_am_send_nbx) am_send;
  decltype(&ucp_am_recv_data_nbx) am_recv_data;
  decltype(&ucp_am_data_release) am_data_release;
  decltype(&ucp_request_free) request_free;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucs_status_string) status_string;
};

/// Opens a library of this name. An error says which it was, and what to install or set.
Result<UcxLibrary> open_ucx_library(const char* name);
/// libucp.so.0, opened by the first call; the same answer to each further one.
Result<const UcxLibrary*> ucx_library();

}  // namespace onebit::transport
