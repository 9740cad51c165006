#include "transport/factory.h"

#include <algorithm>
#include <utility>

#include "transport/tcp/tcp.h"
#ifdef ONEBIT_WITH_UCX
#include "transport/ucx/ucx.h"
#endif
#include "transport/verbs/verbs.h"

namespace onebit::transport {
namespace {

/// What a process says of one transport. Where all `fabric`s are equal, each reaches each.
struct Ability {
  bool usable = false;
  std::string fabric;  ///< or why it is not usable
};

struct Transport {
  std::string_view name;
  Ability (*ability)(const Settings& settings);  ///< null: only when it is named
  Result<std::vector<Device>> (*devices)(const Settings& settings, const SocketAddress& toward);
  /// The first of them is what a rank uses.
  Result<std::vector<Device>> (*rank_devices)(const Settings& settings, const SocketAddress& toward);
  Result<std::unique_ptr<Context>> (*make)(const Settings& settings, std::vector<Device> devices,
                                           std::uint32_t flows);
};

Ability verbs_ability(const Settings& settings) {
  auto fabric = verbs_fabric(settings);
  if (fabric.ok()) return {true, std::move(*fabric)};
  return {false, fabric.status().message()};
}

#ifdef ONEBIT_WITH_UCX
constexpr std::string_view kLeftOut;
#else
constexpr std::string_view kLeftOut = " (ucx was left out: no libucx-dev when this was built)";
#endif

/// In the order in which `auto` tries them; the last one of these can always be used.
constexpr Transport kTransports[] = {
    {"verbs", verbs_ability, verbs_devices, verbs_rank_devices,
     [](const Settings& settings, std::vector<Device> devices, std::uint32_t /*flows*/) {
       return make_verbs_context(settings, std::move(devices));
     }},
    {"tcp",
     [](const Settings&) {
       return Ability{true, "IP"};
     },
     tcp_devices, tcp_devices, make_tcp_context},
#ifdef ONEBIT_WITH_UCX
    {"ucx", nullptr, ucx_devices, ucx_devices,
     [](const Settings& settings, std::vector<Device> devices, std::uint32_t /*flows*/) {
       return make_ucx_context(settings, std::move(devices));
     }},
#endif
};

Result<const Transport*> find(std::string_view name) {
  std::string names;
  for (const Transport& transport : kTransports) {
    if (transport.name == name) return &transport;
    names += formatted(", {}", transport.name);
  }
  return Status::error(
      Code::kInvalidUsage,
      "ONEBIT_TRANSPORT={}: this build of onebit has no such transport for host memory; set one "
      "of auto{}{}",
      name, names, kLeftOut);
}

// An offer is a line for each transport: its name, 1 or 0, and the fabric or the reason, with tabs between.
constexpr std::string_view kUsable = "\t1\t";
constexpr std::string_view kUnusable = "\t0\t";

Ability ability_in(std::span<const std::byte> offer, std::string_view name) {
  std::string_view lines(reinterpret_cast<const char*>(offer.data()), offer.size());
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(kUsable)) return {true, std::string(line.substr(kUsable.size()))};
    if (line.starts_with(kUnusable)) return {false, std::string(line.substr(kUnusable.size()))};
  }
  return {false, "its onebit does not have it"};
}

/// Empty where all ranks can use the transport together, else why they cannot.
std::string obstacle(std::string_view name, std::span<const std::vector<std::byte>> offers) {
  const Ability first = ability_in(offers.front(), name);
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const Ability ability = ability_in(offers[rank], name);
    const std::string who = offers.size() > 1 ? formatted("rank {}: ", rank) : std::string();
    if (!ability.usable) return formatted("{}{}", who, ability.fabric);
    if (ability.fabric != first.fabric) {
      return formatted("rank 0 is on {}, rank {} on {}", first.fabric, rank, ability.fabric);
    }
  }
  return std::string();
}

/// Why a transport that was asked for is not there, and what to ask for instead.
Status with_remedy(const Status& status, std::string_view transport, const Settings& settings) {
  if (settings.transport != transport || transport == "tcp") return status;
  return Status::error(status.code(), "{}; or set ONEBIT_TRANSPORT=auto, which takes what all ranks have",
                       status.message());
}

}  // namespace

std::vector<std::byte> offer(const Settings& settings) {
  std::string text;
  for (const Transport& transport : kTransports) {
    if (transport.ability == nullptr) continue;
    const Ability ability = transport.ability(settings);
    text += formatted("{}{}{}\n", transport.name, ability.usable ? kUsable : kUnusable, ability.fabric);
  }
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Result<Choice> choose(const Settings& settings, std::span<const std::vector<std::byte>> offers) {
  if (settings.transport != "auto") {
    ONEBIT_RETURN_IF_ERROR(find(settings.transport).status());
    return Choice{settings.transport, formatted("ONEBIT_TRANSPORT={}", settings.transport)};
  }
  std::string why;
  for (const Transport& transport : kTransports) {
    if (transport.ability == nullptr) continue;
    const std::string missing = obstacle(transport.name, offers);
    if (missing.empty()) {
      why += formatted("{}{}", why.empty() ? "" : "; ", ability_in(offers.front(), transport.name).fabric);
      return Choice{std::string(transport.name), why};
    }
    why += formatted("{}not {} ({})", why.empty() ? "" : "; ", transport.name, missing);
  }
  return Status::error(Code::kDataError, "no transport for all ranks: {}", why);
}

Result<Choice> choose(const Settings& settings) {
  const std::vector<std::byte> own = offer(settings);
  return choose(settings, std::span(&own, 1));
}

Result<std::vector<Device>> find_devices(std::string_view transport, const Settings& settings,
                                         const SocketAddress& toward) {
  ONEBIT_ASSIGN_OR_RETURN(const Transport* const found, find(transport));
  auto devices = found->devices(settings, toward);
  return devices.ok() ? std::move(devices) : with_remedy(devices.status(), transport, settings);
}

Result<std::unique_ptr<Context>> make_context(std::string_view transport, const Settings& settings,
                                              std::vector<Device> devices, std::uint32_t flows) {
  ONEBIT_ASSIGN_OR_RETURN(const Transport* const found, find(transport));
  return found->make(settings, std::move(devices), flows);
}

Result<std::unique_ptr<Context>> make_context(std::string_view transport, const Settings& settings,
                                              const SocketAddress& toward, std::uint32_t flows) {
  ONEBIT_ASSIGN_OR_RETURN(const Transport* const found, find(transport));
  auto devices = found->rank_devices(settings, toward);
  if (!devices.ok()) return with_remedy(devices.status(), transport, settings);
  return found->make(settings, std::move(*devices), flows);
}

}  // namespace onebit::transport
