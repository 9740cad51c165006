// The poll loop of rank 0, and what it says when ranks are missing, doubled or gone.
#include "bootstrap/gathering.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.h"

namespace onebit::bootstrap {
namespace {

constexpr std::size_t kMaxPending = 256;
constexpr int kAcceptsATurn = 64;
// How long rank 0 goes on to tell late ranks that the job has failed.
constexpr std::chrono::milliseconds kLastWordsTime{1'000};

/// At most a quarter of the process' file descriptors go to connections that have not proved the key.
std::size_t pending_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxPending;
  return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 4, 4, kMaxPending));
}

/// A connection on its way to becoming a rank.
struct Pending {
  UniqueSocket fd;
  Handshake handshake;
  SocketAddress peer;
  Deadline deadline;
  std::optional<Member> member;  // set once it has proved the key and has been accepted
  short events = POLLIN;
};

class Gathering {
 public:
  Gathering(std::vector<UniqueSocket> listeners, const Key& key, const Member& self,
            std::string_view self_where, std::string_view meeting, Deadline deadline)
      : listeners_(std::move(listeners)),
        key_(key),
        self_(self),
        meeting_(meeting),
        deadline_(deadline),
        ranks_(self.world_size),
        claimed_(self.world_size) {
    claimed_[0] = self_where;
  }

  Result<std::vector<Joined>> run() {
    while (come_ + 1 < self_.world_size) {
      if (const Status status = turn(); !status.ok()) return last_words(status);
    }
    return std::move(ranks_);
  }

 private:
  Status turn();
  Status last_words(const Status& failure);
  Status accept_new(int listener);
  bool drop_oldest(const Status& why);
  Status serve(Pending& pending, bool& finished);
  Status judge(const Pending& pending, const Member& member, bool& fatal) const;
  void turn_away(const SocketAddress& peer, const Status& why);
  Status check_joined(std::size_t rank);
  Status missing() const;

  std::vector<UniqueSocket> listeners_;
  Key key_;
  Member self_;
  std::string meeting_;
  Deadline deadline_;
  std::vector<Joined> ranks_;
  std::vector<std::string> claimed_;  // where the rank is that took this number; empty: free
  std::vector<Pending> pending_;      // oldest first
  std::size_t pending_limit_ = pending_limit();
  std::size_t come_ = 0;
  Status failure_;          // set when the job has failed, and ranks that still come are only told so
  std::vector<bool> told_;  // by number
  std::size_t turned_away_ = 0;
  std::vector<std::string> reasons_;  // the first few that a user can do something about
};

/// Tells everyone, ranks that are on their way just now included: they would wait in vain.
Status Gathering::last_words(const Status& failure) {
  failure_ = failure;
  for (const std::string& where : claimed_) told_.push_back(!where.empty());
  for (const Pending& pending : pending_) {
    if (pending.member) told_[pending.member->rank] = false;
  }
  tell_all(ranks_, failure).ok();
  ranks_ = std::vector<Joined>(self_.world_size);
  deadline_ = deadline_.earlier(Deadline::after(kLastWordsTime));
  while (std::find(told_.begin(), told_.end(), false) != told_.end() && turn().ok()) continue;
  tell_all(ranks_, failure).ok();  // those whose handshake had been answered before the failure
  return failure;
}

/// Waits until something happens, and sees to it. An error is one of the whole job.
Status Gathering::turn() {
  if (deadline_.passed()) return failure_.ok() ? missing() : failure_;
  // Only open ones: poll refuses a list that is longer than RLIMIT_NOFILE.
  std::vector<pollfd> entries;
  std::vector<std::size_t> joined;
  for (const UniqueSocket& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].stream.fd() < 0) continue;
    entries.push_back({ranks_[rank].stream.fd(), POLLIN, 0});
    joined.push_back(rank);
  }
  Deadline wake = deadline_;
  for (const Pending& pending : pending_) {
    entries.push_back({pending.fd.get(), pending.events, 0});
    wake = wake.earlier(pending.deadline);
  }
  ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(entries, wake));
  static_cast<void>(ready);

  // Those that wait first: a flood at the listener must not push out a rank whose bytes are here.
  const std::size_t joined_at = listeners_.size(), pending_at = joined_at + joined.size();
  std::vector<Pending> kept;
  Status failure;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Pending& pending = pending_[i];
    bool finished = false;
    if (entries[pending_at + i].revents != 0) {
      const Status status = serve(pending, finished);
      if (failure.ok()) failure = status;
    }
    if (!finished && pending.deadline.passed()) {
      const Status slow = Status::error(Code::kTimeout, "no handshake within {} s", kHandshakeTime.count());
      if (pending.member && failure.ok()) {
        failure = slow.with_context(
            formatted("rank {} at {}", pending.member->rank, claimed_[pending.member->rank]));
      }
      turn_away(pending.peer, slow);
      finished = true;
    }
    if (!finished) kept.push_back(std::move(pending));
  }
  pending_ = std::move(kept);
  ONEBIT_RETURN_IF_ERROR(failure);

  for (std::size_t i = 0; i < joined.size(); ++i) {
    if (entries[joined_at + i].revents != 0) ONEBIT_RETURN_IF_ERROR(check_joined(joined[i]));
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (entries[i].revents != 0) ONEBIT_RETURN_IF_ERROR(accept_new(listeners_[i].get()));
  }
  return Status();
}

Status Gathering::accept_new(int listener) {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    SocketAddress peer;
    auto accepted = accept_from(listener, &peer);
    if (!accepted.ok()) {
      // Out of file descriptors, as a rule; that is also said where no connection waits.
      ONEBIT_ASSIGN_OR_RETURN(const bool waiting, wait_ready(listener, POLLIN, Deadline::after({})));
      if (!waiting) return Status();
      if (!drop_oldest(accepted.status())) {
        return accepted.status().with_context(formatted("rank 0 at {}", meeting_));
      }
      continue;
    }
    if (!*accepted) return Status();
    if (pending_.size() >= pending_limit_) {
      drop_oldest(Status(Code::kTimeout, "too many connections without a handshake"));
    }
    if (const Status tuned = tune_tcp(accepted->get(), std::chrono::seconds(30), 0, 0); !tuned.ok()) {
      turn_away(peer, tuned);
      continue;
    }
    const int fd = accepted->get();
    pending_.push_back({std::move(*accepted), Handshake(fd, Role::kServer, key_, Purpose::kRendezvous), peer,
                        Deadline::after(kHandshakeTime), std::nullopt});
  }
  return Status();
}

bool Gathering::drop_oldest(const Status& why) {
  const auto oldest = std::find_if(pending_.begin(), pending_.end(),
                                   [](const Pending& pending) { return !pending.member.has_value(); });
  if (oldest == pending_.end()) return false;
  turn_away(oldest->peer, why);
  pending_.erase(oldest);
  return true;
}

void Gathering::turn_away(const SocketAddress& peer, const Status& why) {
  log(LogLevel::kInfo, "rendezvous at {}: turned away {}: {}", meeting_, peer.to_string(), why.message());
  ++turned_away_;
  if (why.code() == Code::kInvalidUsage && reasons_.size() < 3) {
    reasons_.push_back(formatted("{}: {}", peer.host(), why.message()));
  }
}

/// Whether `member` may join; `fatal` when the job cannot go on whatever comes.
Status Gathering::judge(const Pending& pending, const Member& member, bool& fatal) const {
  if (!failure_.ok()) return failure_;
  const std::string where = member.where(pending.peer.host());
  if (member.version != self_.version) {
    return Status::error(Code::kInvalidUsage, "{} has onebit {}, rank 0 has {}: use one release on all ranks",
                         where, member.version, self_.version);
  }
  if (member.job != self_.job) {
    return Status::error(Code::kInvalidUsage, "{} belongs to another job (its job id differs from rank 0's)",
                         where);
  }
  if (member.world_size != self_.world_size) {
    return Status::error(Code::kInvalidUsage, "{} says that the job has {} ranks, rank 0 says {}", where,
                         member.world_size, self_.world_size);
  }
  if (member.rank >= self_.world_size) {
    return Status::error(Code::kInvalidUsage, "{} says that it is rank {}, but the job has {} ranks", where,
                         member.rank, self_.world_size);
  }
  if (!claimed_[member.rank].empty()) {
    fatal = true;
    return Status::error(Code::kInvalidUsage,
                         "two processes claim to be rank {}: {} and {}; give each rank a number of its own",
                         member.rank, claimed_[member.rank], where);
  }
  return Status();
}

/// Goes on with a handshake; an error is one of the whole job.
Status Gathering::serve(Pending& pending, bool& finished) {
  for (;;) {
    const auto step = pending.handshake.advance();
    if (!step.ok()) {
      finished = true;
      if (!pending.member) {
        turn_away(pending.peer, step.status());
        return Status();
      }
      return step.status().with_context(
          formatted("rank {} at {}", pending.member->rank, claimed_[pending.member->rank]));
    }
    switch (*step) {
      case Handshake::Step::kWantRead:
      case Handshake::Step::kWantWrite:
        pending.events = *step == Handshake::Step::kWantRead ? POLLIN : POLLOUT;
        return Status();
      case Handshake::Step::kWantAnswer: {
        const auto member = decode_member(pending.handshake.peer_payload());
        bool fatal = false;
        const Status verdict = member.ok() ? judge(pending, *member, fatal) : member.status();
        if (verdict.ok()) {
          claimed_[member->rank] = member->where(pending.peer.host());
          deadline_ = deadline_.earlier(Deadline::after(member->patience));
          pending.member = *member;
          pending.handshake.answer({});
          break;
        }
        if (!failure_.ok() && member.ok() && member->rank < told_.size()) told_[member->rank] = true;
        pending.handshake.refuse(verdict.message());
        static_cast<void>(pending.handshake.advance());  // a fresh connection takes it at once
        finished = true;
        turn_away(pending.peer, verdict);
        return fatal ? verdict : Status();
      }
      case Handshake::Step::kDone: {
        finished = true;
        const std::uint32_t rank = pending.member->rank;
        ONEBIT_ASSIGN_OR_RETURN(SocketAddress local, local_address(pending.fd.get()));
        local.set_port(0);
        ranks_[rank] = {FrameStream(std::move(pending.fd), kMaxDataFrame), *pending.member, claimed_[rank],
                        local};
        ++come_;
        if (!failure_.ok()) told_[rank] = true;
        return Status();
      }
    }
  }
}

/// A rank that has joined has nothing to say before the roll: what came is its end.
Status Gathering::check_joined(std::size_t rank) {
  Joined& joined = ranks_[rank];
  const auto frame = joined.stream.read();
  if (frame.ok() && !frame->has_value()) return Status();
  Status failure = !frame.ok()                             ? frame.status()
                   : (**frame).type == FrameType::kFailure ? decode_failure((**frame).payload)
                                                           : Status(Code::kDataError, "it spoke out of turn");
  failure = failure.with_context(formatted("rank {} at {} failed during set-up", rank, joined.where));
  joined.stream = FrameStream();
  return failure;
}

Status Gathering::missing() const {
  std::vector<int> absent;
  std::map<std::string, std::vector<int>> present;  // by host
  present[self_.host].push_back(0);
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].stream.fd() < 0) {
      absent.push_back(static_cast<int>(rank));
    } else {
      present[ranks_[rank].member.host].push_back(static_cast<int>(rank));
    }
  }
  std::string text =
      formatted("{} of {} ranks did not come to rank 0 at {} in time: missing {} {}; here are", absent.size(),
                ranks_.size(), meeting_, absent.size() == 1 ? "is rank" : "are ranks", ranges_of(absent));
  std::size_t hosts = 0;
  for (const auto& [host, ranks] : present) {
    if (++hosts > 16) {
      text += formatted(", and those of {} more hosts", present.size() - 16);
      break;
    }
    text += formatted("{} {} ({})", hosts == 1 ? "" : ",", ranges_of(ranks), host);
  }
  text += ". Look at the output of the missing ranks; ONEBIT_INIT_TIMEOUT is how long the others wait";
  if (turned_away_ != 0) text += formatted(". {} connections were turned away", turned_away_);
  for (const std::string& reason : reasons_) text += formatted("; {}", reason);
  return Status(Code::kTimeout, text);
}

}  // namespace

Result<std::vector<Joined>> gather_ranks(std::vector<UniqueSocket> listeners, const Key& key,
                                         const Member& self, std::string_view self_where,
                                         std::string_view meeting, Deadline deadline) {
  return Gathering(std::move(listeners), key, self, self_where, meeting, deadline).run();
}

Status tell_all(std::vector<Joined>& ranks, const Status& failure) {
  const auto message = std::make_shared<const std::vector<std::byte>>(encode_failure(failure));
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  for (Joined& joined : ranks) {
    if (joined.stream.fd() >= 0) joined.stream.queue(FrameType::kFailure, message);
  }
  for (;;) {
    std::vector<pollfd> entries;
    for (Joined& joined : ranks) {
      if (joined.stream.fd() < 0) continue;
      if (!joined.stream.flush().ok()) joined.stream = FrameStream();
      if (joined.stream.wants_write()) entries.push_back({joined.stream.fd(), POLLOUT, 0});
    }
    if (entries.empty()) return failure;
    const auto ready = wait_ready(entries, deadline);
    if (!ready.ok() || *ready == 0) return failure;
  }
}

}  // namespace onebit::bootstrap
