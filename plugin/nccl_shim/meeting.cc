// What the ranks of a new communicator do together: compare settings, and make its two levels.
#define XXH_INLINE_ALL
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "communicator.h"
#include "watchdog.h"

namespace onebit::shim {
namespace {

std::uint64_t hash(std::string_view text) {
  return XXH64(text.data(), text.size(), 0);
}

/// What ranks must agree on to decide alike and to understand each other: names, and numbers that are equal
/// when they do.
constexpr std::size_t kAgreed = 10;
constexpr std::array<std::string_view, kAgreed> kAgreedNames = {
    "the version of onebit", "ONEBIT_COMPRESS",        "ONEBIT_MIN_SIZE",     "ONEBIT_BLOCK",
    "ONEBIT_SCALE",          "ONEBIT_CHUNK",           "ONEBIT_WARMUP_CALLS", "ONEBIT_TWO_LEVEL",
    "ONEBIT_TRANSPORT",      "the communicator's name"};
/// These, and a number of the rank's node.
constexpr std::size_t kTold = kAgreed + 1;

/// Equal for ranks that NCCL takes to be on one node.
std::uint64_t node_number() {
  if (const char* const id = std::getenv("NCCL_HOSTID"); id != nullptr && *id != '\0') return hash(id);
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return hash(std::string(name.data()) + boot);
}

std::array<std::uint64_t, kTold> told_numbers(const Settings& settings, std::string_view name) {
  return {cuda::kLibraryVersion,
          hash(settings.compress),
          settings.min_size,
          settings.block,
          settings.scale_is_mean,
          settings.chunk,
          settings.warmup_calls,
          static_cast<std::uint64_t>(settings.two_level),
          hash(settings.transport),
          hash(name),
          node_number()};
}

const Settings& settings() {
  return shim_settings()->settings;
}
const cuda::Library& library() {
  return *shim_settings()->library;
}

}  // namespace

nccl::Result Communicator::meet(const std::vector<std::shared_ptr<Communicator>>& all) {
  std::vector<Communicator*> compared;
  for (const auto& one : all) {
    if (one->device_side_ != nullptr) compared.push_back(one.get());
  }
  if (compared.empty()) return nccl::kSuccess;
  const std::chrono::milliseconds patience = settings().init_timeout;
  const nccl::Result result = in_time(compared, patience, "told their settings", [&] {
    Told told;
    const nccl::Result exchanged = exchange(compared, &told);
    if (exchanged != nccl::kSuccess) return exchanged;
    for (std::size_t i = 0; i < compared.size(); ++i) compared[i]->compare(told[i]);
    return make_levels(compared, told);
  });
  if (result != nccl::kSuccess || !shim_settings()->has_own_transport()) return result;
  // Connecting has this time for itself, and tells the others what came of it.
  return in_time(compared, 2 * patience, "made connections", [&] { return make_wires(compared); });
}

nccl::Result Communicator::in_time(const std::vector<Communicator*>& compared,
                                   std::chrono::milliseconds patience, std::string_view waits_for,
                                   const std::function<nccl::Result()>& body) {
  Watchdog watchdog(patience, [&] {
    for (Communicator* const one : compared) one->give_up();
  });
  const nccl::Result result = body();
  if (!watchdog.dismiss()) return result;
  for (const Communicator* const one : compared) {
    log(LogLevel::kWarn,
        "communicator '{}', rank {} of {}: not all ranks {} within {} s (ONEBIT_INIT_TIMEOUT): look for a "
        "rank that failed when it made the communicator",
        one->name(), one->rank_, one->ranks_, waits_for, std::chrono::duration<double>(patience).count());
  }
  return nccl::kSystemError;
}

nccl::Result Communicator::make_wires(const std::vector<Communicator*>& compared) {
  std::vector<nccl::NcclCommunicator*> carried;
  for (const Communicator* const one : compared) {
    if (one->obstacle_.empty()) carried.push_back(one->device_side_);
  }
  return carried.empty() ? nccl::kSuccess : library().make_wires(carried.data(), carried.size());
}

nccl::Result Communicator::exchange(const std::vector<Communicator*>& compared, Told* told) {
  std::vector<std::array<std::uint64_t, kTold>> mine;
  std::vector<cuda::Comparison> comparisons;
  mine.reserve(compared.size());  // comparisons look at them
  for (const Communicator* const one : compared) {
    mine.push_back(told_numbers(settings(), one->name()));
    told->emplace_back(kTold * static_cast<std::size_t>(one->ranks_));
  }
  for (std::size_t i = 0; i < compared.size(); ++i)
    comparisons.push_back({compared[i]->device_side_, mine[i].data(), kTold, (*told)[i].data()});
  return library().compare(comparisons.data(), comparisons.size());
}

void Communicator::compare(const std::vector<std::uint64_t>& told) {
  for (std::size_t k = 0; k < told.size(); ++k) {
    if (k % kTold >= kAgreed || told[k] == told[k % kTold]) continue;
    obstacle_ = formatted("rank {} differs from rank 0 in {}", k / kTold, kAgreedNames[k % kTold]);
    log(LogLevel::kWarn, "communicator '{}' of {} ranks is not compressed: {}", name(), ranks_, obstacle_);
    return;
  }
}

nccl::Result Communicator::make_levels(const std::vector<Communicator*>& compared, const Told& told) {
  const TwoLevel wanted = settings().two_level;
  if (wanted == TwoLevel::kOff) return nccl::kSuccess;
  const bool is_warned = wanted == TwoLevel::kOn;
  std::vector<cuda::LevelRequest> requests;
  std::vector<const Communicator*> asked;
  std::vector<std::vector<std::uint64_t>> hosts;
  for (std::size_t i = 0; i < compared.size(); ++i) {
    if (!compared[i]->obstacle_.empty()) continue;
    if (compared[i]->real_->functions.split == nullptr) {
      log(is_warned ? LogLevel::kWarn : LogLevel::kInfo,
          "communicator '{}': no two levels, NCCL {} has no ncclCommSplit (2.18 and later have it)",
          compared[i]->name(), compared[i]->real_->version_text());
      continue;
    }
    std::vector<std::uint64_t>& its = hosts.emplace_back();
    for (std::size_t k = kAgreed; k < told[i].size(); k += kTold) its.push_back(told[i][k]);
    asked.push_back(compared[i]);
  }
  for (std::size_t i = 0; i < asked.size(); ++i)
    requests.push_back({asked[i]->device_side_, hosts[i].data(), 0});
  const nccl::Result result = library().make_levels(requests.data(), requests.size());
  for (std::size_t i = 0; i < asked.size() && result == nccl::kSuccess; ++i) {
    const Communicator& one = *asked[i];
    if (requests[i].nodes != 0) {
      log(LogLevel::kInfo, "communicator '{}', rank {}: two levels, {} nodes of {} ranks", one.name(),
          one.rank_, requests[i].nodes, static_cast<unsigned>(one.ranks_) / requests[i].nodes);
    } else if (is_warned) {
      log(LogLevel::kWarn,
          "communicator '{}', rank {}: ONEBIT_TWO_LEVEL=on, but its ranks are not several on each of several "
          "nodes, "
          "equally many: one level",
          one.name(), one.rank_);
    }
  }
  return result;
}

}  // namespace onebit::shim
