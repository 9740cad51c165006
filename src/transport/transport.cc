// What a transport need not say for itself: that it has no part in the memory of GPUs.
#include "transport/transport.h"

namespace onebit::transport {

Status refuse_dma_buf(std::string_view transport, std::size_t bytes) {
  return Status::error(Code::kInvalidUsage,
                       "{} bytes of a dma-buf: transport {} has no way to memory of GPUs", bytes, transport);
}

Status Endpoint::flush(Request& request, const void* /*data*/, std::size_t bytes, Memory* /*memory*/) {
  request.bytes = bytes;
  request.state = Request::State::kDone;
  return Status();
}

Result<std::unique_ptr<Memory>> Context::register_dma_buf(void* /*data*/, std::size_t bytes,
                                                          const DmaBuf& /*buffer*/) {
  return refuse_dma_buf(name(), bytes);
}

}  // namespace onebit::transport
