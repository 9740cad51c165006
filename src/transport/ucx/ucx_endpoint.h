// One end of a connection over UCX: its introduction, its sends, its receives.
//
// What ends it, and the control connection, are in controlled_endpoint.h. A message goes as active messages
// with one segment each. UCX sends a small segment with its header; of a large one the header comes first,
// and the receiver fetches it straight into the receive that matches. The sender stays within the window that
// the receiver has said, so no more than that waits unmatched. What UCX calls back only takes notes (done_,
// arrivals_, error_), except that a small message may be copied to its receive; the rest is done in
// advance().
// Invariants: a pending request is in one of {sends_, posted_}, is filling_, or is that of an operation under
// way; after drop() UCX knows nothing of the endpoint and its requests any more. ucx_endpoint.cc has the
// life, ucx_transfers.cc the two directions. Threads: those of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/controlled_endpoint.h"
#include "transport/request_list.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_core.h"
#include "transport/ucx/ucx_wire.h"

namespace onebit::transport {

/// A segment as UCX hands it over.
struct UcxArrival {
  UcxHeader header;
  std::byte* data = nullptr;  ///< its bytes, or what fetches them
  std::size_t bytes = 0;
  bool by_rendezvous = false;
  bool may_be_kept = false;  ///< `data`, behind the handler, until it is released or fetched
  bool here = false;         ///< false: the place of one that has not come
  std::vector<std::byte> copy;
};

class UcxEndpoint final : public ControlledEndpoint {
 public:
  /// The connecting end, to a listener of the control context.
  static Result<std::unique_ptr<UcxEndpoint>> connect(const std::shared_ptr<UcxCore>& core,
                                                      const Handle& handle, std::span<const std::byte> hello);
  /// The accepting end, over its control connection.
  static Result<std::unique_ptr<UcxEndpoint>> accepted(const std::shared_ptr<UcxCore>& core,
                                                       std::unique_ptr<Endpoint> control);
  ~UcxEndpoint() override;

  Status send(Request& request, const void* data, std::size_t bytes, std::uint64_t tag, std::uint32_t check,
              Memory* memory) override;
  Status receive(Request& request, void* data, std::size_t capacity, std::uint64_t tag, std::uint32_t check,
                 Memory* memory) override;
  std::optional<WaitingMessage> waiting_message() const override;

  // For UcxCore and UcxWorker.
  /// In the handler of active messages; `problem`: what is wrong with it. True when its data is kept.
  bool on_arrival(UcxArrival& arrival, const char* problem, std::size_t header_bytes) noexcept;
  /// Acts on what UCX has called back.
  void advance();

 private:
  explicit UcxEndpoint(std::shared_ptr<UcxCore> core);
  UcxCore& ucx() const noexcept { return static_cast<UcxCore&>(*core_); }
  const UcxLibrary& library() const noexcept { return ucx().library(); }

  // Life
  Status introduce();
  Status join(const UcxIntroduction& peer);
  void post_opening();
  void check_ready();
  Status take_control(ControlKind kind, std::span<const std::byte> bytes) override;
  void pump() override;
  bool all_sent() const override { return last_sent_; }
  bool all_taken(std::uint32_t messages) const override;
  bool settled(Clock::time_point now) const override;
  Status broken() const override;
  void drop() noexcept override;
  void close() noexcept;
  void note_moved() noexcept;
  void on_error(ucs_status_t status) noexcept;
  /// Transfers of requests.
  bool is_under_way(UcxOperation::Kind kind) const noexcept;
  bool has_unsent() const noexcept;

  // Transfers
  void post_segments();
  void post_credits(UcxOperation::Kind kind = UcxOperation::Kind::kSend);
  bool credits_are_due() noexcept;
  void post_message(UcxOperation::Kind kind, UcxHeader& header, Request* request, const std::byte* data,
                    std::size_t bytes);
  UcxOperation& begin(UcxOperation::Kind kind, Request* request, std::size_t bytes);
  void begun(UcxOperation& operation, ucs_status_ptr_t result);
  void complete(UcxOperation& operation);
  bool take_credits(std::uint32_t freed) noexcept;
  bool take_at_once(const UcxArrival& arrival);
  Status take_arrivals();
  void fetch(const UcxArrival& arrival, Request& request, std::byte* to);
  void received(Request& request, std::size_t bytes);
  static void on_done(UcxOperation& operation, void* request, ucs_status_t status) noexcept;

  UcxWorker* worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::uint64_t token_ = 0;
  std::uint64_t peer_token_ = 0;
  std::uint64_t peer_core_ = 0;
  UcxPair pair_;
  bool accepted_ = false;
  bool noted_ = false;  ///< its turn comes in the next poll()
  bool heard_ = false;  ///< something has come over UCX
  bool opening_posted_ = false;
  bool opening_sent_ = false;
  ucs_status_t error_ = UCS_OK;  ///< of UCX's endpoint; the control connection may know more
  Status trouble_;               ///< what the handler has found
  std::vector<UcxOperation*> under_way_;
  std::vector<UcxOperation*> done_;  ///< of those under way

  // Sends
  RequestList sends_;  ///< in order; of the first, some segments may be under way
  std::uint32_t peer_window_ = 0;
  std::uint32_t segments_sent_ = 0;
  std::uint32_t peer_freed_ = 0;
  bool last_posted_ = false;
  bool last_sent_ = false;  ///< all that was sent has left UCX

  // Receives
  std::deque<UcxArrival> arrivals_;  ///< from segment `freed_` on
  Request* filling_ = nullptr;       ///< takes the next segments
  std::uint32_t freed_ = 0;          ///< segments that were matched
  std::uint32_t told_ = 0;           ///< of `freed_`, what the peer knows
  std::uint32_t messages_arrived_ = 0;
  std::uint32_t messages_taken_ = 0;
  std::uint64_t bytes_announced_ = 0;
  std::uint64_t bytes_arrived_ = 0;
};

}  // namespace onebit::transport
