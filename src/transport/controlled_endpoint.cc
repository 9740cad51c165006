#include "transport/controlled_endpoint.h"

#include <algorithm>
#include <utility>

namespace onebit::transport {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kControlTag = 1;
constexpr milliseconds kCloseTick{2};

}  // namespace

ControlledEndpoint::ControlledEndpoint(const std::shared_ptr<ControlledCore>& core, std::size_t most_control)
    : CommonEndpoint(core), core_(core.get()), hearing_(most_control) {}

ControlledEndpoint::~ControlledEndpoint() {
  control_.reset();  // before the requests that it may have
}

// --- The control connection ---

void ControlledEndpoint::begin_connecting(std::unique_ptr<Endpoint> control,
                                          std::span<const std::byte> hello) {
  control_ = std::move(control);
  expect_answers(hello);
}

void ControlledEndpoint::begin_accepting(std::span<const std::byte> hello) {
  coming_ = true;
  expect_answers(hello);
}

void ControlledEndpoint::expect_answers(std::span<const std::byte> hello) {
  hello_.assign(hello.begin(), hello.end());
  expect_answer();
  core_->control_due = true;
}

void ControlledEndpoint::become_ready() noexcept {
  CommonEndpoint::become_ready();
  core_->control_due = true;
}

Status ControlledEndpoint::say(Request& request, std::vector<std::byte> what) {
  std::vector<std::byte>& bytes = saying_[static_cast<std::size_t>(&request - said_.data())];
  bytes = std::move(what);
  return control_->send(request, bytes.data(), bytes.size(), kControlTag, 0);
}

Status ControlledEndpoint::hear() {
  return control_->receive(heard_, hearing_.data(), hearing_.size(), kControlTag, 0);
}

void ControlledEndpoint::on_control() {
  if (state_ == State::kFailed) return;
  if (!hearing_begun_ && control_->state() == State::kReady) {
    if (Status begun = hear(); !begun.ok()) return fail(std::move(begun));
    hearing_begun_ = true;
  }
  while (hearing_begun_ && heard_.state == Request::State::kDone && !goodbye_received_) {
    Status taken = take(std::span(hearing_).first(heard_.bytes));
    if (taken.ok() && !goodbye_received_) taken = hear();
    if (!taken.ok()) return fail(taken.with_context(peer()));
  }
  if (control_->state() == State::kFailed) return fail(control_->status());
  if (Status problem = broken(); !problem.ok()) return fail(std::move(problem));
  check_finished();
  at_control_ = true;
  pump();
  at_control_ = false;
}

Status ControlledEndpoint::take(std::span<const std::byte> bytes) {
  if (bytes.empty()) return bad_control();
  const auto kind = static_cast<ControlKind>(bytes[0]);
  if (kind != ControlKind::kGoodbye) return take_control(kind, bytes);
  if (state_ == State::kConnecting) return bad_control();
  ONEBIT_ASSIGN_OR_RETURN(goodbye_messages_, decode_goodbye(bytes));
  goodbye_received_ = true;
  return Status();
}

void ControlledEndpoint::on_broken(Status status) {
  if (goodbye_received_) {
    status = Status::error(Code::kRemoteError,
                           "{}: has finished and closed the connection before it took all messages", peer());
  }
  broken_ = std::move(status);
  core_->control_due = true;
}

Status ControlledEndpoint::bad_data(std::string_view what) const {
  return Status::error(Code::kDataError, "{}: sent {}", peer(), what);
}

std::optional<WaitingMessage> ControlledEndpoint::waiting(std::uint64_t tag, std::uint64_t bytes) const {
  if (has_posted(tag)) return std::nullopt;
  return WaitingMessage{tag, bytes, !posted_.empty()};
}

// --- Ending ---

void ControlledEndpoint::stop(const Status& why) noexcept {
  control_->abort(why);  // first: the peer learns why before it sees that the transfers stop
  drop();
}

void ControlledEndpoint::finish() {
  if (finishing_ || state_ == State::kFailed) return;
  finishing_ = true;
  pump();
}

void ControlledEndpoint::try_goodbye() {
  if (!finishing_ || goodbye_sent_ || !usable() || !all_sent()) return;
  if (Status said = say(said_[2], encode_goodbye(next_send_)); !said.ok()) return fail(std::move(said));
  goodbye_sent_ = true;
  goodbye_at_ = Clock::now();
  control_->finish();
  core_->control_due = true;
  core_->ask_tick(kCloseTick);
}

void ControlledEndpoint::check_finished() {
  if (!goodbye_received_ || state_ != State::kReady || !all_taken(goodbye_messages_)) return;
  become_finished();
  check_closed(Clock::now());
}

void ControlledEndpoint::check_closed(Clock::time_point now) {
  if (closed_ || !goodbye_sent_ || !usable()) return;
  if (!control_->closed() || !settled(now)) return core_->ask_tick(kCloseTick);
  closed_ = true;
  core_->notable = true;
}

void ControlledEndpoint::on_tick(Clock::time_point now) {
  if (waits_for_answer(now)) return;
  if (!goodbye_sent_ || closed_ || !usable()) return;
  core_->control_due = true;
  check_closed(now);
}

}  // namespace onebit::transport
