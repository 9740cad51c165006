#include "collective/schedule.h"

#include <algorithm>
#include <exception>

namespace onebit::collective {

void Schedule::Computation::run() noexcept {
  const Clock::time_point begin = Clock::now();
  try {
    status = run_stage(schedule->stages_);
  } catch (const std::exception& error) {  // out of memory
    status = Status(Code::kSystemError, error.what());
  }
  took = Clock::now() - begin;
}

Status Schedule::Computation::run_stage(Stages& stages) const {
  switch (stage) {
    case Stage::kPrepare:
      return stages.prepare(owner, chunk);
    case Stage::kReduce:
      return stages.reduce(chunk);
    case Stage::kFinish:
      return stages.finish_reduction();
    case Stage::kEmit:
      return stages.emit(chunk);
    case Stage::kConsume:
      return stages.consume(owner, chunk);
  }
  return Status();
}

Schedule::Schedule(Stages& stages, const Peers& peers, std::size_t chunks, std::size_t depth)
    : stages_(stages),
      peers_(peers),
      chunks_(chunks),
      depth_(std::min(depth, chunks)),
      ranks_(peers.size(), peers.memory),
      result_in_(peers.size() * chunks, 0, peers.memory),
      pieces_present_(chunks, 0, peers.memory),
      results_left_(chunks, peers.size(), peers.memory),
      reduced_(chunks, 0, peers.memory),
      computations_(peers.memory),
      free_computations_(peers.memory),
      inline_queue_(peers.memory),
      transfers_(peers.memory),
      free_transfers_(peers.memory) {
  // As many as can be at once, so that what a call takes does not depend on timing.
  for (std::size_t i = 0; i < most_transfers(peers.size(), depth_); ++i) {
    free_transfers_.push_back(&transfers_.emplace_back());
  }
  for (std::size_t i = 0; i < most_computations(peers.size(), depth_); ++i) {
    free_computations_.push_back(&computations_.emplace_back());
  }
}

Status Schedule::start() {
  started_ = waits_since_ = Clock::now();
  for (std::size_t chunk = 0; chunk < depth_; ++chunk) {
    ONEBIT_RETURN_IF_ERROR(post_pieces(chunk));
    for (std::size_t i = 1; i < peers_.size(); ++i) {
      ONEBIT_RETURN_IF_ERROR(transfer(Message::kResultIn, peers_.after(i), chunk));
    }
  }
  return prepare_more();
}

Status Schedule::on_request(transport::Request& request) {
  auto& ended = *static_cast<Transfer*>(request.user);
  --transfers_pending_;
  if (request.state == transport::Request::State::kFailed) return request_failure(peers_, ended.peer);
  const bool incoming = ended.message == Message::kPieceIn || ended.message == Message::kResultIn;
  if (incoming && request.bytes != ended.expected) {
    return Status::error(Code::kInvalidUsage, "rank {} sent {} bytes of chunk {} where {} were due",
                         ended.peer, request.bytes, ended.chunk, ended.expected);
  }
  free_transfers_.push_back(&ended);
  return transferred(ended.message, ended.peer, ended.chunk);
}

Status Schedule::on_task(Task& task) {
  auto& ended = static_cast<Computation&>(task);
  ONEBIT_RETURN_IF_ERROR(ended.status);
  (ended.stage == Stage::kPrepare   ? times_.encode
   : ended.stage == Stage::kConsume ? times_.decode
                                    : times_.average) += ended.took;
  if (--computing_ == 0) waits_since_ = Clock::now();
  free_computations_.push_back(&ended);
  return computed(ended.stage, ended.owner, ended.chunk);
}

Result<bool> Schedule::compute_one() {
  if (inline_queue_.empty()) return false;
  Computation* next = inline_queue_.front();
  inline_queue_.pop_front();
  next->run();
  ONEBIT_RETURN_IF_ERROR(on_task(*next));
  return true;
}

bool Schedule::done() const {
  return consumed_ == chunks_ * peers_.size() && transfers_pending_ == 0;
}

std::vector<std::size_t> Schedule::waiting_for() const {
  // A rank whose piece of the next chunk is missing holds everybody up; a missing result may be another
  // rank's fault.
  std::vector<std::size_t> late;
  for (std::size_t i = 1; i < peers_.size(); ++i) {
    if (reduce_started_ < chunks_ && ranks_[peers_.after(i)].pieces_in <= reduce_started_) {
      late.push_back(peers_.after(i));
    }
  }
  for (std::size_t i = 1; late.empty() && i < peers_.size(); ++i) {
    if (ranks_[peers_.after(i)].results_in < chunks_) late.push_back(peers_.after(i));
  }
  for (const auto& transfer : transfers_) {
    if (late.empty() && transfer.request.state == transport::Request::State::kPending)
      late.push_back(transfer.peer);
  }
  std::sort(late.begin(), late.end());
  return late;
}

StageTimes Schedule::times() const {
  StageTimes times = times_;
  const Clock::time_point now = Clock::now();
  times.call = now - started_;
  if (computing_ == 0) times.waiting += now - waits_since_;
  return times;
}

bool Schedule::may_prepare(std::size_t owner, std::size_t chunk) const {
  if (chunk >= chunks_) return false;
  if (chunk < depth_) return true;
  return owner == peers_.rank ? reduced_[chunk - depth_] != 0
                              : result_in_[owner * chunks_ + chunk - depth_] != 0;
}

bool Schedule::result_slot_is_free(std::size_t chunk) const {
  return chunk < depth_ || results_left_[chunk - depth_] == 0;
}

Status Schedule::prepare_more() {
  // One chunk of every owner in turn, so that all owners can start; this rank's own last, as it need not
  // travel.
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 1; i <= peers_.size(); ++i) {
      const std::size_t owner = peers_.after(i);
      std::size_t& next = ranks_[owner].prepare_started;
      if (!may_prepare(owner, next)) continue;
      more = true;
      const std::size_t chunk = next++;
      if (stages_.passes_data_through()) {
        ONEBIT_RETURN_IF_ERROR(computed(Stage::kPrepare, owner, chunk));
      } else {
        ONEBIT_RETURN_IF_ERROR(compute(Stage::kPrepare, owner, chunk));
      }
    }
  }
  return Status();
}

Status Schedule::reduce_more() {
  while (reduce_started_ < chunks_ && pieces_present_[reduce_started_] == peers_.size() &&
         (stages_.emits_at_end() || result_slot_is_free(reduce_started_))) {
    ONEBIT_RETURN_IF_ERROR(compute(Stage::kReduce, peers_.rank, reduce_started_++));
  }
  return Status();
}

Status Schedule::post_pieces(std::size_t chunk) {
  for (std::size_t i = 1; chunk < chunks_ && i < peers_.size(); ++i) {
    ONEBIT_RETURN_IF_ERROR(transfer(Message::kPieceIn, peers_.after(i), chunk));
  }
  return Status();
}

Status Schedule::send_result(std::size_t chunk) {
  for (std::size_t i = 1; i < peers_.size(); ++i) {
    ONEBIT_RETURN_IF_ERROR(transfer(Message::kResultOut, peers_.after(i), chunk));
  }
  return compute(Stage::kConsume, peers_.rank, chunk);
}

Status Schedule::compute(Stage stage, std::size_t owner, std::size_t chunk) {
  if (stage == Stage::kConsume && stages_.passes_data_through()) return computed(stage, owner, chunk);
  if (free_computations_.empty()) {
    free_computations_.push_back(&computations_.emplace_back());
  }
  Computation& task = *free_computations_.back();
  free_computations_.pop_back();
  task.schedule = this;
  task.stage = stage;
  task.owner = owner;
  task.chunk = chunk;
  if (computing_++ == 0) times_.waiting += Clock::now() - waits_since_;
  if (peers_.pool == nullptr) {
    inline_queue_.push_back(&task);
    return Status();
  }
  // What other ranks wait for goes first.
  peers_.pool->submit(task, stage == Stage::kPrepare   ? Urgency::kNormal
                            : stage == Stage::kConsume ? Urgency::kLow
                                                       : Urgency::kHigh);
  return Status();
}

Status Schedule::computed(Stage stage, std::size_t owner, std::size_t chunk) {
  switch (stage) {
    case Stage::kPrepare:
      if (owner != peers_.rank) return transfer(Message::kPieceOut, owner, chunk);
      ++pieces_present_[chunk];
      return reduce_more();
    case Stage::kReduce:
      reduced_[chunk] = 1;
      ++reduce_finished_;
      if (stages_.emits_at_end()) {
        return reduce_finished_ == chunks_ ? compute(Stage::kFinish, peers_.rank, 0) : Status();
      }
      // The receive first: the result tells the others that the slot of this chunk's pieces is ready for the
      // next.
      ONEBIT_RETURN_IF_ERROR(post_pieces(chunk + depth_));
      ONEBIT_RETURN_IF_ERROR(send_result(chunk));
      return prepare_more();
    case Stage::kFinish:
      for (std::size_t each = 0; each < chunks_; ++each) {
        ONEBIT_RETURN_IF_ERROR(compute(Stage::kEmit, peers_.rank, each));
      }
      return Status();
    case Stage::kEmit:
      return send_result(chunk);
    case Stage::kConsume:
      ++consumed_;
      if (owner != peers_.rank) {
        return chunk + depth_ < chunks_ ? transfer(Message::kResultIn, owner, chunk + depth_) : Status();
      }
      --results_left_[chunk];
      return reduce_more();
  }
  return Status();
}

Status Schedule::transfer(Message message, std::size_t peer, std::size_t chunk) {
  if (free_transfers_.empty()) {
    free_transfers_.push_back(&transfers_.emplace_back());
  }
  Transfer& next = *free_transfers_.back();
  free_transfers_.pop_back();
  next.message = message;
  next.peer = peer;
  next.chunk = chunk;
  next.request.user = &next;
  next.request.notify = true;
  ++transfers_pending_;
  transport::Endpoint& endpoint = *peers_.endpoints[peer];
  const auto tag = [&](unsigned phase) { return message_tag(peers_.operation, chunk, phase); };
  switch (message) {
    case Message::kPieceOut: {
      const auto bytes = stages_.piece(peer, chunk);
      return started(peers_, peer,
                     endpoint.send(next.request, bytes.data(), bytes.size(), tag(0), peers_.check));
    }
    case Message::kPieceIn: {
      const auto bytes = stages_.piece_slot(peer, chunk);
      next.expected = bytes.size();
      return started(peers_, peer,
                     endpoint.receive(next.request, bytes.data(), bytes.size(), tag(0), peers_.check));
    }
    case Message::kResultOut: {
      const auto bytes = stages_.result(chunk);
      return started(peers_, peer,
                     endpoint.send(next.request, bytes.data(), bytes.size(), tag(1), peers_.check));
    }
    case Message::kResultIn: {
      const auto bytes = stages_.result_slot(peer, chunk);
      next.expected = bytes.size();
      return started(peers_, peer,
                     endpoint.receive(next.request, bytes.data(), bytes.size(), tag(1), peers_.check));
    }
  }
  return Status();
}

Status Schedule::transferred(Message message, std::size_t peer, std::size_t chunk) {
  switch (message) {
    case Message::kPieceOut:
      return Status();
    case Message::kPieceIn:
      ++ranks_[peer].pieces_in;
      ++pieces_present_[chunk];
      return reduce_more();
    case Message::kResultOut:
      --results_left_[chunk];
      return reduce_more();
    case Message::kResultIn:
      ++ranks_[peer].results_in;
      result_in_[peer * chunks_ + chunk] = 1;
      ONEBIT_RETURN_IF_ERROR(compute(Stage::kConsume, peer, chunk));
      return prepare_more();
  }
  return Status();
}

}  // namespace onebit::collective
