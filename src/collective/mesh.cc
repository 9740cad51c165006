// Communicator set-up: settings compared between ranks, then an endpoint to every other rank.

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "base/log.h"
#include "collective/communicator.h"

namespace onebit::collective {
namespace {

constexpr std::uint32_t kFlowsForFewRanks = 2;
constexpr std::size_t kFewRanks = 16;
constexpr std::size_t kMostSettingsBytes = 60'000;
constexpr auto kAcceptPoll = std::chrono::milliseconds(50);

std::uint32_t flows_for(const Settings& settings, std::size_t ranks) {
  if (settings.tcp_flows != 0) return settings.tcp_flows;
  return ranks <= kFewRanks ? kFlowsForFewRanks : 1;
}

/// The settings that must be equal on all ranks, as "NAME=VALUE", the communicator's name first.
std::vector<std::string> common_settings(const std::string& name, const Settings& settings) {
  constexpr std::string_view kCommon[] = {"ONEBIT_COMPRESS", "ONEBIT_MIN_SIZE", "ONEBIT_BLOCK",
                                          "ONEBIT_SCALE",    "ONEBIT_CHUNK",    "ONEBIT_PIPELINE_DEPTH",
                                          "ONEBIT_TRANSPORT"};
  std::vector<std::string> lines{fmt::format("communicator name={}", name)};
  for (const SettingRow& row : setting_rows()) {
    if (std::find(std::begin(kCommon), std::end(kCommon), row.name) != std::end(kCommon)) {
      lines.push_back(fmt::format("{}={}", row.name, row.value.show(settings)));
    }
  }
  return lines;
}

/// As one text and back; values may hold anything but zeros.
std::string joined(const std::vector<std::string>& values) {
  std::string text = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) (text += '\0') += values[i];
  return text;
}
std::vector<std::string> separated(std::span<const std::byte> bytes) {
  std::vector<std::string> values(1);
  for (const std::byte byte : bytes) {
    if (byte == std::byte{0}) {
      values.emplace_back();
    } else {
      values.back().push_back(static_cast<char>(byte));
    }
  }
  return values;
}

}  // namespace

Status Communicator::compare_settings(bootstrap::Rendezvous& rendezvous) {
  const std::vector<std::string> mine = common_settings(name_, settings_);
  const std::string text = joined(mine);
  if (text.size() > kMostSettingsBytes) {
    return Status::error(Code::kInvalidArgument,
                         "ONEBIT_COMPRESS and the communicator's name have {} bytes together with the other "
                         "settings that ranks compare; at most {} are possible",
                         text.size(), kMostSettingsBytes);
  }
  ONEBIT_ASSIGN_OR_RETURN(const auto all, rendezvous.all_gather(std::as_bytes(std::span(text)),
                                                                Deadline::after(settings_.init_timeout)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    where_.push_back(rendezvous.where(static_cast<int>(rank)));
    const std::vector<std::string> theirs = separated(all[rank]);
    if (theirs == mine) continue;
    const auto [here, there] = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end());
    return Status::error(Code::kInvalidUsage,
                         "rank {} at {} has {} where rank {} has {}; it must be equal on all ranks", rank,
                         where_[rank], there == theirs.end() ? "nothing" : *there, rank_,
                         here == mine.end() ? "nothing" : *here);
  }
  return Status();
}

Status Communicator::choose_transport(bootstrap::Rendezvous& rendezvous, Deadline deadline) {
  if (settings_.transport != "auto" || ranks() == 1) {
    ONEBIT_ASSIGN_OR_RETURN(transport_, transport::choose(settings_));
    return Status();
  }
  ONEBIT_ASSIGN_OR_RETURN(const auto offers, rendezvous.all_gather(transport::offer(settings_), deadline));
  ONEBIT_ASSIGN_OR_RETURN(transport_, transport::choose(settings_, offers));
  return Status();
}

Status Communicator::open_connections(std::span<const std::vector<std::byte>> handles) {
  const auto my_number = static_cast<std::uint32_t>(rank_);
  for (std::size_t peer = 0; peer < rank_; ++peer) {
    transport::Handle handle;
    if (handles[peer].size() != sizeof handle)
      return Status(Code::kDataError, "a transport handle of a wrong size");
    std::memcpy(&handle, handles[peer].data(), sizeof handle);
    auto endpoint = context_->connect(0, handle, std::as_bytes(std::span(&my_number, 1)));
    if (!endpoint.ok())
      return endpoint.status().with_context(fmt::format("rank {} at {}", peer, where_[peer]));
    endpoints_[peer] = endpoint->get();
    owned_endpoints_.push_back(std::move(*endpoint));
  }
  return Status();
}

Status Communicator::connect(bootstrap::Rendezvous& rendezvous) {
  const Deadline deadline = Deadline::after(settings_.init_timeout);
  ONEBIT_RETURN_IF_ERROR(choose_transport(rendezvous, deadline));
  ONEBIT_ASSIGN_OR_RETURN(context_,
                          transport::make_context(transport_.transport, settings_, rendezvous.own_address(),
                                                  flows_for(settings_, ranks())));
  if (ranks() == 1) return Status();
  ONEBIT_ASSIGN_OR_RETURN(const auto listener, context_->listen(0));
  ONEBIT_ASSIGN_OR_RETURN(const auto handles,
                          rendezvous.all_gather(std::as_bytes(std::span(&listener->handle(), 1)), deadline));

  // Each pair has one connection: the higher rank opens it.
  ONEBIT_RETURN_IF_ERROR(open_connections(handles));
  const auto is_missing = [this](std::size_t peer) {
    return peer != rank_ && (endpoints_[peer] == nullptr ||
                             endpoints_[peer]->state() == transport::Endpoint::State::kConnecting);
  };
  for (;;) {
    for (;;) {
      ONEBIT_ASSIGN_OR_RETURN(auto accepted, listener->accept());
      if (accepted == nullptr) break;
      std::uint32_t peer = 0;
      if (accepted->hello().size() == sizeof peer) std::memcpy(&peer, accepted->hello().data(), sizeof peer);
      if (peer <= rank_ || peer >= ranks() || endpoints_[peer] != nullptr) {
        log(LogLevel::kWarn, "connection from {} dropped: it says it is rank {}", accepted->peer(), peer);
        continue;
      }
      endpoints_[peer] = accepted.get();
      owned_endpoints_.push_back(std::move(accepted));
    }
    if (context_->failed() != nullptr) return endpoint_failure(*context_->failed());
    std::vector<std::size_t> missing;
    for (std::size_t peer = 0; peer < ranks(); ++peer) {
      if (is_missing(peer)) missing.push_back(peer);
      if (endpoints_[peer] != nullptr && endpoints_[peer]->state() == transport::Endpoint::State::kFinished) {
        return Status::error(Code::kRemoteError, "rank {} at {} has left during set-up", peer, where_[peer]);
      }
    }
    if (missing.empty()) break;
    if (deadline.passed()) {
      return Status::error(Code::kTimeout,
                           "no data connection within ONEBIT_INIT_TIMEOUT={} ms with {}: is the way "
                           "between the machines open for these ports (ONEBIT_PORT_RANGE)?",
                           settings_.init_timeout.count(), describe(missing));
    }
    ONEBIT_RETURN_IF_ERROR(rendezvous.watch(Deadline::after(std::chrono::milliseconds(0))));
    completed_.clear();
    ONEBIT_RETURN_IF_ERROR(context_->progress(
        std::min<std::chrono::milliseconds>(kAcceptPoll, std::chrono::milliseconds(deadline.poll_timeout())),
        completed_));
  }
  // Nobody goes on before everybody is connected, so that a failure here is everybody's.
  const std::byte done{1};
  return rendezvous.all_gather(std::span(&done, 1), deadline).status();
}

}  // namespace onebit::collective
