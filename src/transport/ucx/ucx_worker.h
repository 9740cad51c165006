// A worker of UCX: what sends and receives, with an address of its own and a file that tells of events.
//
// Its handler of active messages looks up the endpoint by the token of the message, and calls nothing of UCX.
// In a forked child it lets go without a call: the parent's worker lives on. Threads: those of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/poller.h"
#include "transport/ucx/ucx_library.h"

namespace onebit::transport {

class UcxCore;

class UcxWorker final : public Source {
 public:
  static Result<std::unique_ptr<UcxWorker>> open(UcxCore& core, ucp_context_h context);
  ~UcxWorker() override;

  ucp_worker_h get() const noexcept { return worker_; }
  std::span<const std::byte> address() const noexcept { return address_; }
  /// Moves what can be moved, some at a time; true when there was any.
  bool progress() noexcept;
  /// Has the file tell of the next event. False when there is one already.
  Result<bool> arm() noexcept;
  /// Events only wake: whoever waits makes progress after it.
  void on_ready() override { readable = false; }

 private:
  explicit UcxWorker(UcxCore& core) : core_(core) {}
  Status make(ucp_context_h context);
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* parameters);

  UcxCore& core_;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  ///< UCX's own
  std::vector<std::byte> address_;
};

}  // namespace onebit::transport
