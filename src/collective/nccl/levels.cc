#include "collective/nccl/levels.h"

#include <algorithm>

#include "collective/nccl/device_guard.h"
#include "collective/nccl/failures.h"

namespace onebit::nccl {

std::optional<LevelPlace> place_of(std::span<const std::uint64_t> hosts, unsigned rank) {
  std::vector<std::uint64_t> nodes;
  for (const std::uint64_t host : hosts) {
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
  }
  const auto size = std::count(hosts.begin(), hosts.end(), hosts[0]);
  const bool are_equal = std::all_of(nodes.begin(), nodes.end(), [&](std::uint64_t node) {
    return std::count(hosts.begin(), hosts.end(), node) == size;
  });
  if (nodes.size() < 2 || size < 2 || !are_equal) return std::nullopt;
  const auto own = std::find(nodes.begin(), nodes.end(), hosts[rank]);
  std::vector<unsigned> ranks;
  for (const std::uint64_t node : nodes) {
    for (unsigned other = 0; other < hosts.size(); ++other) {
      if (hosts[other] == node) ranks.push_back(other);
    }
  }
  return LevelPlace{static_cast<unsigned>(nodes.size()), static_cast<unsigned>(own - nodes.begin()),
                    static_cast<unsigned>(size),
                    static_cast<unsigned>(std::count(hosts.begin(), hosts.begin() + rank, hosts[rank])),
                    std::move(ranks)};
}

Result Levels::split(std::span<const std::unique_ptr<Levels>> made, std::span<const Making> all,
                     Comm Levels::*comm) {
  const Functions& nccl = all.front().communicator->options().nccl;
  return in_group(nccl, [&] {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const LevelPlace& place = all[i].place;
      const bool is_inside = comm == &Levels::inside_;
      const unsigned color = is_inside ? place.node : place.place;
      const unsigned key = is_inside ? place.place : place.node;
      const Result result = nccl.split(all[i].communicator->options().comm, static_cast<int>(color),
                                       static_cast<int>(key), &(made[i].get()->*comm), nullptr);
      if (result != kSuccess) return result;
    }
    return kSuccess;
  });
}

Result Levels::make(std::span<const Making> all) {
  if (all.empty()) return kSuccess;
  std::vector<std::unique_ptr<Levels>> made;
  for (const Making& one : all)
    made.push_back(std::unique_ptr<Levels>(new Levels(one.communicator->options().nccl, one.place)));
  for (const auto comm : {&Levels::inside_, &Levels::between_}) {
    const Result result = split(made, all, comm);
    if (result != kSuccess) return failed(result, "ncclCommSplit for two levels", made.front()->nccl_);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    CommunicatorOptions options = all[i].communicator->options();
    options.comm = made[i]->between_;
    options.peers = "a rank of node";
    options.codec.ranks = all[i].place.nodes;
    options.codec.rank = all[i].place.node;
    auto compressed = NcclCommunicator::create(options);
    if (!compressed.ok()) {
      log(LogLevel::kWarn, "two levels: {}", compressed.status().message());
      return kSystemError;
    }
    made[i]->compressed_ = std::move(*compressed);
  }
  for (std::size_t i = 0; i < all.size(); ++i) all[i].communicator->set_levels(std::move(made[i]));
  return kSuccess;
}

bool Levels::make_sums(std::size_t bytes) {
  if (sums_.bytes() >= bytes) return true;
  const CommunicatorOptions& options = compressed_->options();
  const DeviceGuard guard(options.device);
  const cudaStream_t stream = compressed_->own_stream();
  DeviceMemory made({options.codec.memory.allocator, stream}, bytes);
  const bool is_there = made.data() != nullptr && cudaStreamSynchronize(stream) == cudaSuccess;
  if (is_there) sums_ = std::move(made);
  return is_there;
}

void Levels::admit_sums(std::size_t bytes, bool have_all) {
  sums_asked_ = std::max(sums_asked_, bytes);
  if (have_all) sums_admitted_ = std::max(sums_admitted_, bytes);
}

Levels::~Levels() {
  if (compressed_ != nullptr) {
    const DeviceGuard guard(compressed_->options().device);
    sums_ = DeviceMemory();
  }
  compressed_.reset();
  if (is_aborted()) return;
  for (const Comm comm : {inside_, between_}) {
    if (comm != nullptr) nccl_.destroy(comm);
  }
}

void Levels::abort() {
  if (is_aborted_.exchange(true)) return;
  if (compressed_ != nullptr) compressed_->abort();
  for (const Comm comm : {inside_, between_}) {
    if (comm != nullptr) nccl_.abort(comm);
  }
}

}  // namespace onebit::nccl
