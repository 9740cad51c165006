#include "nccl_net/comm.h"

#include <chrono>

#include "nccl_net/abi.h"

namespace onebit::nccl_net {

Comm::Comm(Line line, std::string_view what)
    : line_(std::move(line)), what_(formatted("{} {} over {}", what, line_.endpoint->peer(), line_.device)) {}

Comm::~Comm() = default;

Status Comm::usable() const {
  if (generation_ != UniqueSocket::process_generation()) {
    return Status::error(Code::kInvalidUsage,
                         "{}: the connection belongs to the process that forked this one", what_);
  }
  return error_;
}

Status Comm::endpoint_error() const {
  return line_.endpoint->status().with_context(what_);
}

Status Comm::progress() {
  ONEBIT_RETURN_IF_ERROR(usable());
  if (const Status moved = line_.context->progress(std::chrono::milliseconds(0), completed_); !moved.ok()) {
    return fail(moved.with_context(what_));
  }
  if (line_.endpoint->state() == transport::Endpoint::State::kFailed) return fail(endpoint_error());
  return Status();
}

Status Comm::fail(const Status& status) {
  if (!error_.ok()) return error_;
  error_ = status;
  line_.endpoint->abort(status);
  return error_;
}

Result<std::unique_ptr<transport::Memory>> Comm::register_memory(void* data, std::size_t bytes, int type) {
  if (generation_ != UniqueSocket::process_generation()) return usable();
  const bool of_gpu = type == abi::kPointerCuda && line_.context->devices().front().takes_peer_memory;
  if (type != abi::kPointerHost && !of_gpu) {
    return Status::error(
        Code::kInvalidUsage, "{}: memory of type {} cannot be registered: only the host's ({}){}", what_,
        type, abi::kPointerHost,
        type == abi::kPointerCuda ? ", and a GPU's where the module nvidia_peermem is loaded" : "");
  }
  auto memory = line_.context->register_memory(data, bytes);
  if (!memory.ok()) return memory.status().with_context(what_);
  return memory;
}

Result<std::unique_ptr<transport::Memory>> Comm::register_dma_buf(void* data, std::size_t bytes,
                                                                  const transport::DmaBuf& buffer) {
  if (generation_ != UniqueSocket::process_generation()) return usable();
  auto memory = line_.context->register_dma_buf(data, bytes, buffer);
  if (!memory.ok()) return memory.status().with_context(what_);
  return memory;
}

void Comm::finish() {
  if (!usable().ok()) return;
  if (!idle()) {
    static_cast<void>(fail(Status::error(Code::kAborted, "{}: closed with requests in flight", what_)));
    return;
  }
  line_.endpoint->finish();
}

bool Comm::closed() {
  if (!progress().ok()) return true;
  return line_.endpoint->closed();
}

}  // namespace onebit::nccl_net
