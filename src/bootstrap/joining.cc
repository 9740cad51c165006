// Attempts to reach rank 0, and the error that says why none succeeded.
#include "bootstrap/joining.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/stream.h"

namespace onebit::bootstrap {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{3'000};
// A rank 0 that listens but is still busy with other things is silent; so is many a stranger.
constexpr milliseconds kFirstSilence{5'000};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{500};
// Another job or release on the port may be about to leave it.
constexpr milliseconds kForeignPatience{3'000};

/// The address to connect from; invalid where the kernel shall choose.
Result<SocketAddress> source_for(const SocketAddress& master, const Settings& settings) {
  if (settings.socket_ifname.empty() || master.is_loopback()) return SocketAddress();
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
  ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> chosen,
                          choose_interfaces(all, settings.socket_ifname, settings.socket_family, master));
  for (const Interface& interface : chosen) {
    if (interface.address.family() == master.family()) return interface.address;
  }
  return SocketAddress();
}

}  // namespace

Result<Connected> try_join(const SocketAddress& master, const SocketAddress& source, const Key& key,
                           const Member& self, milliseconds silence, Deadline deadline, bool& final) {
  ONEBIT_ASSIGN_OR_RETURN(UniqueSocket fd, start_connect(master, source));
  ONEBIT_ASSIGN_OR_RETURN(const bool connected,
                          wait_ready(fd.get(), POLLOUT, deadline.earlier(Deadline::after(kConnectTime))));
  if (!connected) {
    return Status::error(Code::kTimeout, "connect to {}: no answer (a firewall?)", master.to_string());
  }
  if (const int error = connect_error(fd.get()); error != 0) {
    return Status::system(error, formatted("connect to {}", master.to_string()));
  }
  ONEBIT_RETURN_IF_ERROR(tune_tcp(fd.get(), std::chrono::seconds(30), 0, 0));

  Member now = self;  // with the time that is left
  now.patience = milliseconds(std::max(deadline.poll_timeout(), 0));
  Handshake handshake(fd.get(), Role::kClient, key, Purpose::kRendezvous, encode_member(now));
  const Deadline answer_by = deadline.earlier(Deadline::after(silence));
  for (;;) {
    const auto step = handshake.advance();
    if (!step.ok()) {
      final = handshake.refused();
      // A refusal is about what this rank asked for: usage, not the network.
      return Status(final ? Code::kInvalidUsage : step.status().code(),
                    formatted("{}: {}", master.to_string(), step.status().message()));
    }
    if (*step == Handshake::Step::kDone) break;
    const short events = *step == Handshake::Step::kWantWrite ? POLLOUT : POLLIN;
    ONEBIT_ASSIGN_OR_RETURN(const bool ready, wait_ready(fd.get(), events, answer_by));
    if (!ready) {
      return Status::error(Code::kTimeout, "{}: connected, but it does not answer (not onebit, or not ready)",
                           master.to_string());
    }
  }
  ONEBIT_ASSIGN_OR_RETURN(SocketAddress local, local_address(fd.get()));
  local.set_port(0);
  return Connected{std::move(fd), local, master};
}

Result<Connected> join_master(const Meeting& meeting, const Key& key, const Member& self,
                              const Settings& settings, Deadline deadline) {
  milliseconds pause = kFirstPause, silence = kFirstSilence;
  std::optional<Deadline> foreign_until;
  Status last(Code::kTimeout, "no time was left to try");
  while (!deadline.passed()) {
    const auto addresses = meeting.addresses();
    if (!addresses.ok()) last = addresses.status();
    for (std::size_t i = 0; addresses.ok() && i < addresses->size() && !deadline.passed(); ++i) {
      const SocketAddress& master = (*addresses)[i];
      ONEBIT_ASSIGN_OR_RETURN(const SocketAddress source, source_for(master, settings));
      bool final = false;
      auto joined = try_join(master, source, key, self, silence, deadline, final);
      if (joined.ok()) return joined;
      last = joined.status();
      log(LogLevel::kTrace, "rank {}: {}", self.rank, last.message());
      if (final) return last.with_context(formatted("rank {}", self.rank));
      if (last.code() == Code::kInvalidUsage) {
        if (!foreign_until) foreign_until = Deadline::after(kForeignPatience);
        if (foreign_until->passed()) {
          return last.with_context(formatted("rank {} cannot join rank 0 at {}", self.rank, meeting.name));
        }
      }
    }
    // Only silence makes the next silence be borne longer: each given-up attempt stays in rank 0's queue.
    if (last.code() == Code::kTimeout) silence = std::min<milliseconds>(silence * 2, std::chrono::minutes(1));
    std::vector<pollfd> nothing;
    ONEBIT_ASSIGN_OR_RETURN(const int ready, wait_ready(nothing, deadline.earlier(Deadline::after(pause))));
    static_cast<void>(ready);
    pause = std::min(pause * 2, kLongestPause);
  }
  return Status::error(
      Code::kTimeout,
      "rank {} could not reach rank 0 at {} within ONEBIT_INIT_TIMEOUT={}ms; the last attempt: {}. {}",
      self.rank, meeting.name, settings.init_timeout.count(), last.message(), meeting.hint);
}

}  // namespace onebit::bootstrap
