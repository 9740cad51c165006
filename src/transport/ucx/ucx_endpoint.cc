// The life of a UcxEndpoint: introduction, what must be done before its end, and how UCX lets go of it.
#include "transport/ucx/ucx_endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

/// A peer that makes no progress may leave what it was sent in its sockets: they stay open for a while.
constexpr milliseconds kLinger{50};
/// UCX ends an endpoint within a few turns of its worker, without the peer.
constexpr milliseconds kCloseTime{2000};

}  // namespace

UcxEndpoint::UcxEndpoint(std::shared_ptr<UcxCore> core)
    : ControlledEndpoint(std::move(core), kMostUcxControl) {
  ucx().make_room();
  token_ = ucx().enter(*this);
}

UcxEndpoint::~UcxEndpoint() {
  if (state() != State::kFailed) drop();
  ucx().forget_moved(*this);
  // Where one end may not have made its endpoint, the next two would not be joined in order.
  if (accepted_ && open_) ucx().free_pair(peer_core_, pair_);
}

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::connect(const std::shared_ptr<UcxCore>& core,
                                                          const Handle& handle,
                                                          std::span<const std::byte> hello) {
  std::unique_ptr<UcxEndpoint> made(new UcxEndpoint(core));
  ONEBIT_ASSIGN_OR_RETURN(
      auto control, core->control->connect(0, handle, encode_hello(hello, encode_ucx_hello(core->id()))));
  made->begin_connecting(std::move(control), hello);
  return made;
}

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::accepted(const std::shared_ptr<UcxCore>& core,
                                                           std::unique_ptr<Endpoint> control) {
  std::unique_ptr<UcxEndpoint> made(new UcxEndpoint(core));
  made->control_ = std::move(control);
  UcxEndpoint& self = *made;
  const auto begin = [&]() -> Status {
    ONEBIT_ASSIGN_OR_RETURN(const SplitHello hello, split_hello(self.control_->hello()));
    self.begin_accepting(hello.users);
    ONEBIT_ASSIGN_OR_RETURN(self.peer_core_, decode_ucx_hello(hello.transports));
    ONEBIT_ASSIGN_OR_RETURN(self.pair_, core->take_pair(self.peer_core_));
    self.accepted_ = true;
    return self.introduce();
  };
  if (const Status begun = begin(); !begun.ok()) {
    self.control_->abort(begun);  // the peer hears why
    return begun.with_context(self.peer());
  }
  return made;
}

Status UcxEndpoint::introduce() {
  ONEBIT_ASSIGN_OR_RETURN(worker_, ucx().worker(pair_.own));
  UcxIntroduction own;
  own.core = ucx().id();
  own.own_worker = pair_.own;
  own.peer_worker = pair_.peer;
  own.token = token_;
  own.window = ucx().window.segments;
  own.address.assign(worker_->address().begin(), worker_->address().end());
  return say(said_[0], encode_ucx_introduction(own));
}

/// Makes UCX's endpoint. It connects when it is used.
Status UcxEndpoint::join(const UcxIntroduction& peer) {
  peer_token_ = peer.token;
  peer_window_ = peer.window;
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = [](void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    static_cast<UcxEndpoint*>(self)->on_error(status);
  };
  parameters.err_handler.arg = this;
  const ucs_status_t status = library().ep_create(worker_->get(), &parameters, &endpoint_);
  if (status == UCS_OK) return Status();
  endpoint_ = nullptr;
  const char* const chosen = std::getenv("UCX_TLS");
  return Status::error(Code::kSystemError,
                       "UCX finds no way to this peer (UCX_TLS={}): {}; every transport must be able to "
                       "handle the failure of a peer",
                       chosen != nullptr ? chosen : "all", library().status_string(status));
}

/// Each end sends credits once it has the other's introduction, the accepting one when it has heard those of
/// the other. An end is ready when its own have left, and it has heard the other's: then both directions are
/// known to carry messages, and the connecting end needs nothing more of the accepting one.
Status UcxEndpoint::take_control(ControlKind kind, std::span<const std::byte> bytes) {
  if (kind != ControlKind::kIntroduction || endpoint_ != nullptr) {
    return Status(Code::kDataError, "what it said on the control connection comes out of turn");
  }
  ONEBIT_ASSIGN_OR_RETURN(const UcxIntroduction introduction, decode_ucx_introduction(bytes));
  if (accepted_) return join(introduction);
  peer_core_ = introduction.core;
  pair_ = {introduction.peer_worker, introduction.own_worker};
  ONEBIT_ASSIGN_OR_RETURN(worker_, ucx().worker(pair_.own));
  ONEBIT_RETURN_IF_ERROR(join(introduction));
  ONEBIT_RETURN_IF_ERROR(introduce());
  post_opening();
  return Status();
}

void UcxEndpoint::post_opening() {
  opening_posted_ = true;
  post_credits(UcxOperation::Kind::kOpening);
}

void UcxEndpoint::check_ready() {
  if (state() != State::kConnecting || !heard_ || !opening_sent_) return;
  log(LogLevel::kTrace, "transport: {} over UCX, worker {}", peer(), pair_.own);
  open_ = true;
  become_ready();
}

void UcxEndpoint::advance() {
  noted_ = false;
  if (state() == State::kFailed) return;
  if (!trouble_.ok()) return fail(trouble_);
  for (UcxOperation* const operation : done_) complete(*operation);
  done_.clear();
  if (Status taken = take_arrivals(); !taken.ok()) return fail(std::move(taken));
  check_ready();
  check_finished();
  pump();
}

void UcxEndpoint::note_moved() noexcept {
  if (noted_) return;
  noted_ = true;
  ucx().note_moved(*this);
}

void UcxEndpoint::on_error(ucs_status_t status) noexcept {
  if (error_ == UCS_OK) error_ = status;
  core_->control_due = true;
}

void UcxEndpoint::pump() {
  if (endpoint_ == nullptr || state() == State::kFailed) return;
  if (error_ == UCS_OK) {
    if (heard_ && !opening_posted_) {
      post_opening();
      check_ready();
    }
    if (open_) post_segments();
    if (credits_are_due()) post_credits();
    if (open_ && finishing_ && !last_posted_ && !has_unsent()) {
      last_posted_ = true;
      post_credits(
          UcxOperation::Kind::kLast);  // they leave behind what UCX may still hold (to flush needs the peer)
    }
  } else if (goodbye_received_ && !has_unsent()) {
    last_sent_ = true;  // to a peer that has left, nothing more is said over UCX
  }
  try_goodbye();
}

bool UcxEndpoint::is_under_way(UcxOperation::Kind kind) const noexcept {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const UcxOperation* operation) {
    return operation->kind == kind && operation->request != nullptr;
  });
}

bool UcxEndpoint::has_unsent() const noexcept {
  return !sends_.empty() || is_under_way(UcxOperation::Kind::kSend);
}

// --- Ending ---

bool UcxEndpoint::all_taken(std::uint32_t messages) const {
  return messages_taken_ == messages && arrivals_.empty() && filling_ == nullptr &&
         !is_under_way(UcxOperation::Kind::kReceive);
}

bool UcxEndpoint::settled(Clock::time_point now) const {
  return peer_freed_ == segments_sent_ || now - goodbye_at_ >= kLinger;
}

/// A peer that has left in order has closed its end, too: that matters only to what is not here yet.
Status UcxEndpoint::broken() const {
  if (error_ == UCS_OK) return Status();
  if (!goodbye_received_) {
    return Status::error(Code::kRemoteError, "{}: the connection over UCX broke: {}", peer(),
                         library().status_string(error_));
  }
  if (has_unsent()) {
    return Status::error(Code::kRemoteError,
                         "{}: has finished and closed the connection before it took all messages", peer());
  }
  if (messages_arrived_ != goodbye_messages_ || bytes_arrived_ != bytes_announced_) {
    return Status::error(Code::kRemoteError,
                         "{}: has finished, and the connection over UCX broke before all of its messages "
                         "had come: {}",
                         peer(), library().status_string(error_));
  }
  return Status();
}

void UcxEndpoint::drop() noexcept {
  ucx().forget(token_);
  if (!core_->is_inherited()) close();
  fail_all(sends_);
  fail_all(posted_);
  for (UcxOperation* const operation : under_way_) {
    Request* const request = operation->request;
    if (request != nullptr && request->state == Request::State::kPending) {
      end(*request, Request::State::kFailed);
    }
    operation->owner = nullptr;
    if (operation->status != UCS_INPROGRESS) ucx().give_back(*operation);
  }
  under_way_.clear();
  done_.clear();
  if (filling_ != nullptr && filling_->state == Request::State::kPending) {
    end(*filling_, Request::State::kFailed);
  }
  filling_ = nullptr;
}

/// Nothing here waits for the peer: what UCX has under way it cancels by itself.
void UcxEndpoint::close() noexcept {
  for (const UcxArrival& arrival : arrivals_) {
    if (arrival.here && arrival.may_be_kept) library().am_data_release(worker_->get(), arrival.data);
  }
  arrivals_.clear();
  if (endpoint_ == nullptr) return;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = library().ep_close(std::exchange(endpoint_, nullptr), &parameters);
  const auto under_way = [&] {
    return (UCS_PTR_IS_PTR(closing) && library().request_check_status(closing) == UCS_INPROGRESS) ||
           std::any_of(under_way_.begin(), under_way_.end(),
                       [](const UcxOperation* operation) { return operation->status == UCS_INPROGRESS; });
  };
  const Deadline deadline = Deadline::after(kCloseTime);
  while (under_way() && !deadline.passed()) library().worker_progress(worker_->get());
  if (under_way()) {
    log(LogLevel::kWarn, "transport: {}: UCX has not let go of the connection within {} ms", peer(),
        kCloseTime.count());
  }
  if (UCS_PTR_IS_PTR(closing)) library().request_free(closing);
}

}  // namespace onebit::transport
