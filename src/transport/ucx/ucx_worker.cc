#include "transport/ucx/ucx_worker.h"

#include "transport/ucx/ucx_core.h"
#include "transport/ucx/ucx_endpoint.h"

namespace onebit::transport {
namespace {

/// In one turn, before others have theirs.
constexpr int kMostTurns = 16;

}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::open(UcxCore& core, ucp_context_h context) {
  std::unique_ptr<UcxWorker> made(new UcxWorker(core));
  ONEBIT_RETURN_IF_ERROR(made->make(context));
  return made;
}

Status UcxWorker::make(ucp_context_h context) {
  ONEBIT_RETURN_IF_ERROR(UcxCore::check_descriptors());
  const UcxLibrary& library = core_.library();
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ONEBIT_RETURN_IF_ERROR(
      core_.check(library.worker_create(context, &parameters, &worker_), "ucp_worker_create"));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = UcxCore::kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  handler.cb = on_message;
  handler.arg = this;
  ONEBIT_RETURN_IF_ERROR(
      core_.check(library.worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler"));
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  ONEBIT_RETURN_IF_ERROR(
      core_.check(library.worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address"));
  const auto* const from = reinterpret_cast<const std::byte*>(address);
  address_.assign(from, from + bytes);
  library.worker_release_address(worker_, address);
  if (bytes > kMostUcxAddress) {
    return Status::error(Code::kSystemError,
                         "a worker address of {} bytes, above the limit of {}: choose fewer networks with "
                         "UCX_NET_DEVICES or UCX_TLS",
                         bytes, kMostUcxAddress);
  }
  ONEBIT_RETURN_IF_ERROR(core_.check(library.worker_get_efd(worker_, &events_), "ucp_worker_get_efd"));
  return core_.poller.add(events_, *this);
}

UcxWorker::~UcxWorker() {
  if (worker_ == nullptr || core_.is_inherited()) return;
  if (events_ >= 0) core_.poller.remove(events_);
  core_.library().worker_destroy(worker_);
}

bool UcxWorker::progress() noexcept {
  bool any = false;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (core_.library().worker_progress(worker_) == 0) break;
    any = true;
    if (core_.has_moved()) break;
  }
  return any;
}

Result<bool> UcxWorker::arm() noexcept {
  const ucs_status_t status = core_.library().worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return false;
  ONEBIT_RETURN_IF_ERROR(core_.check(status, "ucp_worker_arm"));
  return true;
}

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* parameters) {
  UcxCore& core = static_cast<UcxWorker*>(self)->core_;
  const std::span<const std::byte> from(static_cast<const std::byte*>(header), header_bytes);
  UcxArrival arrival;
  const char* const problem = decode_ucx(from, bytes, arrival.header);
  UcxEndpoint* const endpoint = core.find(arrival.header.token);
  if (endpoint == nullptr) return UCS_OK;  // of a stranger, or late for one that has gone
  arrival.data = static_cast<std::byte*>(data);
  arrival.bytes = bytes;
  arrival.by_rendezvous = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  arrival.may_be_kept = arrival.by_rendezvous || (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  return endpoint->on_arrival(arrival, problem, header_bytes) ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace onebit::transport
