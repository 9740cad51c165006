// Set-up of the star from gathered or joined connections, and gathers through its middle.
#include "bootstrap/star.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bootstrap/interfaces.h"
#include "bootstrap/wire.h"

namespace onebit::bootstrap {
namespace {

using std::chrono::milliseconds;
using Bytes = Star::Bytes;

constexpr std::size_t kMaxPart = std::size_t{64} * 1024;
constexpr std::uint32_t kForEver = std::numeric_limits<std::uint32_t>::max();
// How much longer than its own deadline a rank waits for rank 0's word, which says who is late.
constexpr milliseconds kGrace{2'000};
// How long a rank that has lost another waits to hear why.
constexpr milliseconds kHearsay{1'000};

Deadline with_grace(Deadline deadline) {
  const int left = deadline.poll_timeout();
  return left < 0 ? Deadline::never() : Deadline::after(milliseconds(left) + kGrace);
}

std::string_view text_of(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

std::string late(const std::vector<int>& ranks) {
  return formatted("{} {}", ranks.size() == 1 ? "rank" : "ranks", ranges_of(ranks));
}

}  // namespace

Star::~Star() {
  // Shut down, not only closed: a child that was made behind fork's handlers may hold copies.
  for (const Joined& link : links_) {
    if (link.stream.fd() >= 0) ::shutdown(link.stream.fd(), SHUT_RDWR);
  }
}

std::string Star::name(std::size_t rank) const {
  return formatted("rank {} at {}", rank, where_[rank]);
}

Result<std::unique_ptr<Star>> Star::alone(const Settings& settings) {
  auto star = std::make_unique<Star>();
  star->job_key_ = random_key();
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
  auto chosen = choose_interfaces(all, settings.socket_ifname, settings.socket_family, SocketAddress());
  if (chosen.ok()) {
    star->own_ = chosen->front().address;
  } else if (!settings.socket_ifname.empty()) {
    return chosen.status();
  }
  star->where_.push_back(this_member(0, 1, "", {}).where(star->own_.host()));
  return star;
}

Result<std::unique_ptr<Star>> Star::as_master(std::vector<UniqueSocket> listeners, const Key& key,
                                              const Member& self, const std::string& meeting,
                                              const Settings& settings, Deadline deadline) {
  auto star = std::make_unique<Star>();
  star->world_size_ = static_cast<int>(self.world_size);
  ONEBIT_ASSIGN_OR_RETURN(
      star->links_, gather_ranks(std::move(listeners), key, self, self.where(meeting), meeting, deadline));
  // The address at which a rank of another machine has reached us tells more than one of this machine.
  bool several_machines = false;
  for (std::size_t i = star->links_.size(); i-- > 1;) {
    const bool other = star->links_[i].member.machine != self.machine;
    if (other || !several_machines) star->own_ = star->links_[i].local;
    several_machines = several_machines || other;
  }
  if (const Status status = star->settle_own_address(settings, several_machines); !status.ok()) {
    return tell_all(star->links_, status);
  }
  Roll roll;
  roll.salt = random_key();
  roll.entries.push_back({self.where(star->own_.host()), self.machine});
  for (std::size_t i = 1; i < star->links_.size(); ++i) {
    roll.entries.push_back({star->links_[i].where, star->links_[i].member.machine});
  }
  star->take_roll(roll, key, self);
  star->queue_for_all(FrameType::kRoll, encode_roll(roll));
  if (const Status status = star->distribute(deadline); !status.ok()) return tell_all(star->links_, status);
  return star;
}

Result<std::unique_ptr<Star>> Star::as_member(const Meeting& meeting, const Key& key, const Member& self,
                                              const Settings& settings, Deadline deadline) {
  auto star = std::make_unique<Star>();
  star->rank_ = static_cast<int>(self.rank);
  star->world_size_ = static_cast<int>(self.world_size);
  ONEBIT_ASSIGN_OR_RETURN(Connected connected, join_master(meeting, key, self, settings, deadline));
  star->own_ = connected.local;
  star->where_.push_back(connected.master.to_string());
  const std::size_t limit = 64 + self.world_size * (kMaxPart + 4);
  star->links_.push_back({FrameStream(std::move(connected.fd), limit), Member(), "", SocketAddress()});

  ONEBIT_ASSIGN_OR_RETURN(const Frame frame, star->frame_from_master(FrameType::kRoll, deadline));
  const auto roll = decode_roll(frame.payload, self.world_size);
  if (!roll.ok()) return roll.status().with_context(star->name(0));
  star->take_roll(*roll, key, self);
  ONEBIT_RETURN_IF_ERROR(star->settle_own_address(settings, star->local_ranks_ != star->world_size_));
  return star;
}

void Star::take_roll(const Roll& roll, const Key& key, const Member& self) {
  job_key_ = derive_key(text_of(key), text_of(roll.salt));
  where_.clear();
  local_ranks_ = 0;
  for (const Roll::Entry& entry : roll.entries) {
    where_.push_back(entry.where);
    if (entry.machine == self.machine) ++local_ranks_;
  }
}

/// `own_` holds this rank's end of a connection between it and rank 0. That is the address for further
/// listeners, unless the user names an interface, or it is loopback and other machines take part.
Status Star::settle_own_address(const Settings& settings, bool several_machines) {
  const bool unreachable = own_.is_loopback() && several_machines;
  if (settings.socket_ifname.empty() && !unreachable) return Status();
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> chosen,
                          choose_interfaces(all, settings.socket_ifname, settings.socket_family,
                                            unreachable ? SocketAddress() : own_));
  own_ = chosen.front().address;
  return Status();
}

Result<std::vector<Bytes>> Star::all_gather(std::span<const std::byte> mine, Deadline deadline) {
  if (::getpid() != pid_) {
    return Status(Code::kInvalidUsage,
                  "a rendezvous cannot be used in a forked child of the process that made it");
  }
  ONEBIT_RETURN_IF_ERROR(broken_);
  if (mine.size() > kMaxPart) {
    return Status::error(Code::kInvalidArgument, "all_gather of {} bytes a rank, above the limit of {}",
                         mine.size(), kMaxPart);
  }
  if (world_size_ == 1) return std::vector<Bytes>{Bytes(mine.begin(), mine.end())};
  auto parts = rank_ == 0 ? gather_as_master(mine, deadline) : gather_as_member(mine, deadline);
  if (!parts.ok()) broken_ = tell_all(links_, parts.status());
  return parts;
}

/// The next frame from rank 0, which must be of `type`; sends what is queued meanwhile.
Result<Frame> Star::frame_from_master(FrameType type, Deadline deadline) {
  FrameStream& stream = links_.front().stream;
  const Deadline last = with_grace(deadline);
  for (;;) {
    const Status sent = stream.flush();
    // Rank 0 may have said why before it left: read first.
    auto frame = stream.read();
    if (!frame.ok()) return frame.status().with_context(name(0));
    if (frame->has_value()) {
      if ((**frame).type == FrameType::kFailure) return decode_failure((**frame).payload);
      if ((**frame).type == type) return std::move(**frame);
      return Status::error(Code::kDataError, "{} answers out of turn", name(0));
    }
    if (!sent.ok()) return sent.with_context(name(0));
    const auto events = static_cast<short>(POLLIN | (stream.wants_write() ? POLLOUT : 0));
    ONEBIT_ASSIGN_OR_RETURN(const bool ready, wait_ready(stream.fd(), events, last));
    if (!ready) {
      return Status::error(Code::kTimeout, "{} has not answered in time: it is stopped, or in another call",
                           name(0));
    }
  }
}

Result<std::vector<Bytes>> Star::gather_as_member(std::span<const std::byte> mine, Deadline deadline) {
  const int left = deadline.poll_timeout();
  Writer part;
  part.u32(left < 0 ? kForEver : static_cast<std::uint32_t>(left));
  part.bytes(mine);
  queue_for_all(FrameType::kData, part.take());
  ONEBIT_ASSIGN_OR_RETURN(const Frame frame, frame_from_master(FrameType::kAll, deadline));
  std::vector<Bytes> parts;
  Reader reader(frame.payload);
  for (int i = 0; i < world_size_; ++i) {
    const auto content = reader.bytes(reader.u32());
    parts.emplace_back(content.begin(), content.end());
  }
  if (!reader.complete()) return Status::error(Code::kDataError, "{} sent a malformed answer", name(0));
  return parts;
}

Result<std::vector<Bytes>> Star::gather_as_master(std::span<const std::byte> mine, Deadline deadline) {
  std::vector<Bytes> parts(links_.size());
  parts[0].assign(mine.begin(), mine.end());
  ONEBIT_RETURN_IF_ERROR(collect(parts, deadline));
  Writer all;
  for (const Bytes& part : parts) {
    all.u32(static_cast<std::uint32_t>(part.size()));
    all.bytes(part);
  }
  queue_for_all(FrameType::kAll, all.take());
  ONEBIT_RETURN_IF_ERROR(distribute(deadline));
  return parts;
}

/// Waits for the parts of all others. Shortens `deadline` to the first that a rank has set.
Status Star::collect(std::vector<Bytes>& parts, Deadline& deadline) {
  std::vector<bool> come(links_.size());
  come[0] = true;
  for (std::size_t i = 1; i < early_.size(); ++i) {
    if (!early_[i]) continue;
    ONEBIT_RETURN_IF_ERROR(take_part(i, *std::exchange(early_[i], std::nullopt), parts[i], deadline));
    come[i] = true;
  }
  std::vector<pollfd> entries;
  for (const Joined& link : links_) entries.push_back({link.stream.fd(), POLLIN, 0});
  while (std::find(come.begin(), come.end(), false) != come.end()) {
    ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(entries, deadline));
    if (ready == 0) {
      std::vector<int> ranks;
      for (std::size_t i = 1; i < come.size(); ++i) {
        if (!come[i]) ranks.push_back(static_cast<int>(i));
      }
      return Status::error(Code::kTimeout, "no word in time from {} (the first is {})", late(ranks),
                           name(static_cast<std::size_t>(ranks.front())));
    }
    for (std::size_t i = 1; i < entries.size(); ++i) {
      // All that is there, so that a rank which has given up meanwhile is not taken for one that waits.
      while (entries[i].revents != 0) {
        ONEBIT_ASSIGN_OR_RETURN(const auto frame, frame_from_member(i));
        if (!frame.has_value()) break;
        if (come[i]) return Status::error(Code::kDataError, "{} spoke out of turn", name(i));
        ONEBIT_RETURN_IF_ERROR(take_part(i, *frame, parts[i], deadline));
        come[i] = true;
      }
    }
  }
  return Status();
}

/// What a rank has sent next, if it has come; that it has failed or left is an error.
Result<std::optional<Frame>> Star::frame_from_member(std::size_t rank) {
  auto frame = links_[rank].stream.read();
  if (!frame.ok()) {
    links_[rank].stream = FrameStream();
    return frame.status().with_context(name(rank));
  }
  if (frame->has_value() && (**frame).type == FrameType::kFailure) {
    return decode_failure((**frame).payload).with_context(name(rank));
  }
  return frame;
}

/// Listens to all others until `deadline`. Parts for the next all_gather are kept.
Status Star::hear_members(Deadline deadline) {
  early_.resize(links_.size());
  for (;;) {
    std::vector<pollfd> entries;
    // A rank that has given its part says no more but that it has failed, or leaves.
    for (const Joined& link : links_) entries.push_back({link.stream.fd(), POLLIN, 0});
    ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(entries, deadline));
    if (ready == 0) return Status();
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      ONEBIT_ASSIGN_OR_RETURN(auto frame, frame_from_member(i));
      if (!frame.has_value()) continue;
      if (early_[i]) return Status::error(Code::kDataError, "{} spoke out of turn", name(i));
      early_[i] = std::move(frame);
    }
  }
}

/// Ok when nothing has gone wrong up to `deadline`.
Status Star::watch(Deadline deadline) {
  ONEBIT_RETURN_IF_ERROR(broken_);
  if (world_size_ == 1) return Status();
  Status heard;
  if (rank_ == 0) {
    heard = hear_members(deadline);
  } else {
    const auto ready = wait_ready(links_.front().stream.fd(), POLLIN, deadline);
    if (!ready.ok()) return ready.status();
    // Between two gathers rank 0 has nothing to say but that somebody has failed.
    if (*ready) heard = frame_from_master(FrameType::kFailure, Deadline::after(kHearsay)).status();
  }
  if (!heard.ok()) broken_ = tell_all(links_, heard);
  return heard;
}

Status Star::fail(const Status& own) {
  // What this rank has seen of another may be only a consequence.
  const milliseconds patience = own.code() == Code::kRemoteError ? kHearsay : milliseconds(0);
  ONEBIT_RETURN_IF_ERROR(watch(Deadline::after(patience)));
  broken_ = own;
  if (world_size_ > 1) tell_all(links_, rank_ == 0 ? own.with_context(name(0)) : own).ok();
  return own;
}

Status Star::take_part(std::size_t rank, const Frame& frame, Bytes& part, Deadline& deadline) const {
  Reader reader(frame.payload);
  const std::uint32_t patience = reader.u32();
  if (frame.type != FrameType::kData || !reader.intact()) {
    return Status::error(Code::kDataError, "{} spoke out of turn", name(rank));
  }
  if (patience != kForEver) deadline = deadline.earlier(Deadline::after(milliseconds(patience)));
  part.assign(frame.payload.begin() + 4, frame.payload.end());
  return Status();
}

void Star::queue_for_all(FrameType type, Bytes message) {
  const auto shared = std::make_shared<const Bytes>(std::move(message));
  for (Joined& link : links_) {
    if (link.stream.fd() >= 0) link.stream.queue(type, shared);
  }
}

/// Sends all that is queued.
Status Star::distribute(Deadline deadline) {
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<int> slow;
    for (std::size_t i = 1; i < links_.size(); ++i) {
      if (const Status status = links_[i].stream.flush(); !status.ok()) {
        links_[i].stream = FrameStream();
        return status.with_context(name(i));
      }
      if (!links_[i].stream.wants_write()) continue;  // it has all it needs, and may leave
      entries.push_back({links_[i].stream.fd(), POLLOUT, 0});
      slow.push_back(static_cast<int>(i));
    }
    if (entries.empty()) return Status();
    ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(entries, deadline));
    if (ready == 0) {
      return Status::error(Code::kTimeout, "{} read nothing in time (the first is {})", late(slow),
                           name(static_cast<std::size_t>(slow.front())));
    }
  }
}

}  // namespace onebit::bootstrap
