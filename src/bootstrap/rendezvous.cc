// The two ways into a rendezvous: which key, which place to meet, which of the star's roles.
#include "bootstrap/rendezvous.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/listening.h"
#include "bootstrap/star.h"

namespace onebit::bootstrap {
namespace {

Status check_place(int rank, int world_size) {
  if (world_size >= 1 && world_size <= kMaxWorldSize && rank >= 0 && rank < world_size) return Status();
  return Status::error(Code::kInvalidArgument,
                       "rank {} of {}: accepted are a size from 1 to {} and a rank from 0 to size - 1", rank,
                       world_size, kMaxWorldSize);
}

Key key_of(const Launch& launch, const Settings& settings) {
  if (!settings.secret.empty()) return derive_key(settings.secret, "onebit rendezvous");
  static std::atomic_flag said;
  if (!said.test_and_set()) {
    log(LogLevel::kInfo, "no ONEBIT_SECRET: any process that can reach {}:{} and knows the job id can join",
        launch.master_host, launch.master_port);
  }
  return derive_key(launch.job_id, "onebit rendezvous without a secret");
}

Key key_of(const UniqueIdContents& contents, const Settings& settings) {
  if (settings.secret.empty()) return contents.key;
  return derive_key(settings.secret, std::string_view(reinterpret_cast<const char*>(contents.key.data()),
                                                      contents.key.size()));
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<Star> star) : star_(std::move(star)) {}
Rendezvous::~Rendezvous() = default;

Result<std::unique_ptr<Rendezvous>> Rendezvous::join(const Launch& launch, const Settings& settings) {
  ONEBIT_RETURN_IF_ERROR(check_place(launch.rank, launch.world_size));
  const Deadline deadline = Deadline::after(settings.init_timeout);
  const std::string meeting = formatted("{}:{}", launch.master_host, launch.master_port);
  const Member self = this_member(launch.rank, launch.world_size, launch.job_id, settings.init_timeout);
  std::unique_ptr<Star> star;
  if (launch.world_size == 1) {
    ONEBIT_ASSIGN_OR_RETURN(star, Star::alone(settings));
  } else if (launch.rank == 0) {
    const Key key = key_of(launch, settings);
    ONEBIT_ASSIGN_OR_RETURN(auto listeners, open_listeners(launch, settings, key, self, deadline));
    ONEBIT_ASSIGN_OR_RETURN(star,
                            Star::as_master(std::move(listeners), key, self, meeting, settings, deadline));
  } else {
    const Meeting place{
        meeting,
        "Check that rank 0 is running, that MASTER_ADDR and MASTER_PORT (or ONEBIT_MASTER_PORT) are the same "
        "on all ranks and belong to rank 0's machine, and that no firewall is between",
        [&] { return resolve(launch.master_host, launch.master_port, settings.socket_family); }};
    ONEBIT_ASSIGN_OR_RETURN(star, Star::as_member(place, key_of(launch, settings), self, settings, deadline));
  }
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(star)));
}

Result<std::unique_ptr<Rendezvous>> Rendezvous::join(const UniqueId& id, int rank, int world_size,
                                                     const Settings& settings) {
  ONEBIT_RETURN_IF_ERROR(check_place(rank, world_size));
  ONEBIT_ASSIGN_OR_RETURN(const UniqueIdContents contents, read_unique_id(id));
  const Deadline deadline = Deadline::after(settings.init_timeout);
  const Key key = key_of(contents, settings);
  const Member self = this_member(rank, world_size, "", settings.init_timeout);
  std::string meeting;
  for (const SocketAddress& address : contents.addresses) {
    meeting += (meeting.empty() ? "" : " or ") + address.to_string();
  }
  std::unique_ptr<Star> star;
  if (rank == 0) {
    std::vector<UniqueSocket> listeners = take_listeners(id);
    if (listeners.empty()) {
      return Status(Code::kInvalidUsage,
                    "rank 0 must be in the process that made the unique id, and an id serves only once");
    }
    if (world_size == 1) {
      ONEBIT_ASSIGN_OR_RETURN(star, Star::alone(settings));
    } else {
      ONEBIT_ASSIGN_OR_RETURN(star,
                              Star::as_master(std::move(listeners), key, self, meeting, settings, deadline));
    }
  } else {
    // Those in a subnet of ours first: the others may take long to fail.
    ONEBIT_ASSIGN_OR_RETURN(const std::vector<Interface> all, system_interfaces());
    std::vector<SocketAddress> addresses = contents.addresses;
    std::stable_partition(addresses.begin(), addresses.end(), [&](const SocketAddress& address) {
      return std::any_of(all.begin(), all.end(), [&](const Interface& interface) {
        return interface.up && same_subnet(interface, address);
      });
    });
    const Meeting place{meeting,
                        "Check that the process that made the unique id is running as rank 0, and that no "
                        "firewall is between",
                        [&]() -> Result<std::vector<SocketAddress>> { return addresses; }};
    ONEBIT_ASSIGN_OR_RETURN(star, Star::as_member(place, key, self, settings, deadline));
  }
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(star)));
}

int Rendezvous::rank() const {
  return star_->rank();
}
int Rendezvous::world_size() const {
  return star_->world_size();
}
const Key& Rendezvous::job_key() const {
  return star_->job_key();
}
const SocketAddress& Rendezvous::own_address() const {
  return star_->own_address();
}
const std::string& Rendezvous::where(int rank) const {
  static const std::string kUnknown = "(no such rank)";
  const auto& where = star_->where();
  return rank >= 0 && rank < world_size() ? where[static_cast<std::size_t>(rank)] : kUnknown;
}
int Rendezvous::local_ranks() const {
  return star_->local_ranks();
}

Result<std::vector<std::vector<std::byte>>> Rendezvous::all_gather(std::span<const std::byte> mine,
                                                                   Deadline deadline) {
  return star_->all_gather(mine, deadline);
}
Status Rendezvous::watch(Deadline deadline) {
  return star_->watch(deadline);
}
Status Rendezvous::fail(const Status& own) {
  return star_->fail(own);
}

}  // namespace onebit::bootstrap
