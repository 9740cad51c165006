// Which transport carries a job's data, and contexts of it: all that the layers above know of transports.
//
// All ranks must choose the same. With ONEBIT_TRANSPORT=auto that is a matter of what each of them has: every
// rank makes an offer, the offers are gathered, and every rank draws the same choice from them. Pure
// functions but for what they look up in the system; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/socket.h"
#include "base/status.h"
#include "transport/transport.h"

namespace onebit::transport {

/// What this process could use, for the other ranks to see: some hundred bytes.
std::vector<std::byte> offer(const Settings& settings);

struct Choice {
  std::string transport;  ///< for the functions below
  std::string why;        ///< in words, for the log
};
/// The transport for ranks with these offers, by rank: the one that ONEBIT_TRANSPORT names, or the first of
/// verbs and tcp that all of them can use and that reaches from each to each. The same on every rank.
/// kInvalidUsage for a name that no transport has, which says what there is.
Result<Choice> choose(const Settings& settings, std::span<const std::vector<std::byte>> offers);
/// The same for a process that cannot ask the others.
Result<Choice> choose(const Settings& settings);

/// The devices of a transport that the settings choose, never empty when ok; for TCP the one toward `toward`
/// first (may be invalid: none).
Result<std::vector<Device>> find_devices(std::string_view transport, const Settings& settings,
                                         const SocketAddress& toward);
/// A context on these devices. `flows`: TCP connections to each peer where the settings do not say it; 0 =
/// automatic.
Result<std::unique_ptr<Context>> make_context(std::string_view transport, const Settings& settings,
                                              std::vector<Device> devices, std::uint32_t flows = 0);
/// The same on find_devices(transport, settings, toward).
Result<std::unique_ptr<Context>> make_context(std::string_view transport, const Settings& settings,
                                              const SocketAddress& toward, std::uint32_t flows = 0);

}  // namespace onebit::transport
