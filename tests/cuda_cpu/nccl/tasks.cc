#include "cuda_cpu/nccl/tasks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cuda_cpu/nccl/elements.h"
#include "cuda_cpu/nccl/exchange.h"

namespace onebit::nccl_stand_in {
namespace {

using Kind = Task::Kind;
using Transfers = std::vector<Transfer>;

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

/// One collective, with what it needs at hand.
class Collective {
 public:
  Collective(Communicator& communicator, const Task& task)
      : communicator_(communicator),
        task_(task),
        ranks_(communicator.ranks()),
        own_(communicator.rank()),
        block_(task.count * size_of(task.type)),
        send_(static_cast<char*>(const_cast<void*>(task.send))),
        receive_(static_cast<char*>(task.receive)) {}

  bool run() {
    switch (task_.kind) {
      case Kind::kAllReduce:
      case Kind::kReduce:
      case Kind::kReduceScatter:
        return reduce();
      case Kind::kBroadcast:
        return broadcast();
      case Kind::kAllGather:
        return all_gather();
      case Kind::kAllToAll:
        return all_to_all();
      case Kind::kGather:
        return gather();
      default:
        return scatter();
    }
  }

 private:
  void to(int peer, char* data, std::size_t bytes) { transfers_.push_back({true, peer, data, bytes}); }
  void from(int peer, char* data, std::size_t bytes) { transfers_.push_back({false, peer, data, bytes}); }
  bool exchange_all() {
    const bool good = exchange(communicator_, transfers_);
    transfers_.clear();
    return good;
  }
  template <typename Visit>
  void for_each_other(Visit visit) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != own_) visit(rank);
    }
  }
  char* block(char* data, int rank) const { return data + static_cast<std::size_t>(rank) * block_; }
  bool is_root() const { return own_ == task_.peer; }

  bool all_gather() {
    copy(block(receive_, own_), send_, block_);
    for_each_other([&](int rank) {
      to(rank, block(receive_, own_), block_);
      from(rank, block(receive_, rank), block_);
    });
    return exchange_all();
  }
  bool all_to_all() {
    copy(block(receive_, own_), block(send_, own_), block_);
    for_each_other([&](int rank) {
      to(rank, block(send_, rank), block_);
      from(rank, block(receive_, rank), block_);
    });
    return exchange_all();
  }
  bool broadcast() {
    if (is_root()) {
      copy(receive_, send_, block_);
      for_each_other([&](int rank) { to(rank, send_, block_); });
    } else {
      from(task_.peer, receive_, block_);
    }
    return exchange_all();
  }
  bool gather() {
    if (is_root()) {
      copy(block(receive_, own_), send_, block_);
      for_each_other([&](int rank) { from(rank, block(receive_, rank), block_); });
    } else {
      to(task_.peer, send_, block_);
    }
    return exchange_all();
  }
  bool scatter() {
    if (is_root()) {
      copy(receive_, block(send_, own_), block_);
      for_each_other([&](int rank) { to(rank, block(send_, rank), block_); });
    } else {
      from(task_.peer, receive_, block_);
    }
    return exchange_all();
  }

  // Each rank sums one part, in the order of the ranks, so that all results are the same bytes in every run.
  bool reduce() {
    const std::size_t element = size_of(task_.type);
    const auto ranks = static_cast<std::size_t>(ranks_);
    const bool scatters = task_.kind == Kind::kReduceScatter;
    const std::size_t total = scatters ? task_.count * ranks : task_.count;
    const std::size_t part = scatters ? task_.count : (total + ranks - 1) / ranks;
    const auto first = [&](int rank) { return std::min(total, static_cast<std::size_t>(rank) * part); };
    const auto bytes = [&](int rank) {
      return (std::min(total, first(rank) + part) - first(rank)) * element;
    };

    std::vector<char> given(total * element);
    copy(given.data(), send_, given.size());
    premultiply(given.data(), total);
    std::vector<char> parts(ranks * bytes(own_));  // one from each rank
    const auto part_of = [&](int rank) {
      return parts.data() + static_cast<std::size_t>(rank) * bytes(own_);
    };
    copy(part_of(own_), given.data() + first(own_) * element, bytes(own_));
    for_each_other([&](int rank) {
      to(rank, given.data() + first(rank) * element, bytes(rank));
      from(rank, part_of(rank), bytes(own_));
    });
    if (!exchange_all()) return false;
    const std::size_t own_count = bytes(own_) / element;
    reduce_parts(parts.data(), ranks, own_count, task_.type, task_.op);
    if (task_.op == ncclAvg) divide(parts.data(), own_count, task_.type, ranks_);
    if (scatters) {
      copy(receive_, parts.data(), block_);
      return true;
    }
    const bool receives = task_.kind == Kind::kAllReduce || is_root();
    if (receives) copy(receive_ + first(own_) * element, parts.data(), bytes(own_));
    for_each_other([&](int rank) {
      if (receives) from(rank, receive_ + first(rank) * element, bytes(rank));
      if (task_.kind == Kind::kAllReduce || rank == task_.peer) to(rank, parts.data(), bytes(own_));
    });
    return exchange_all();
  }

  void premultiply(char* data, std::size_t count) const {
    const PremultipliedSum& factor = task_.factor;
    if (!factor.in_use) return;
    const double value =
        factor.device_scalar == nullptr ? factor.scalar : read_scalar(factor.device_scalar, factor.type);
    multiply(data, count, task_.type, value);
  }

  Communicator& communicator_;
  const Task& task_;
  const int ranks_;
  const int own_;
  const std::size_t block_;  ///< bytes
  char* const send_;
  char* const receive_;
  Transfers transfers_;
};

/// A rank's transfers with itself: the n-th send goes to the n-th receive.
bool copy_own(Communicator& communicator, const std::vector<const Task*>& sends,
              const std::vector<const Task*>& receives) {
  bool match = sends.size() == receives.size();
  for (std::size_t i = 0; match && i < sends.size(); ++i) {
    const std::size_t bytes = sends[i]->count * size_of(sends[i]->type);
    match = bytes == receives[i]->count * size_of(receives[i]->type);
    if (match) copy(receives[i]->receive, sends[i]->send, bytes);
  }
  if (match) return true;
  std::fprintf(stderr, "stand-in for NCCL: rank %d of %s: sends to itself and receives from itself differ\n",
               communicator.rank(), communicator.name().c_str());
  communicator.break_off(ncclInvalidUsage);
  return false;
}

}  // namespace

bool run(Communicator& communicator, const std::vector<Task>& tasks) {
  Transfers transfers;
  std::vector<const Task*> own_sends;
  std::vector<const Task*> own_receives;
  for (const Task& task : tasks) {
    if (!task.point_to_point()) {
      if (!Collective(communicator, task).run()) return false;
      continue;
    }
    const bool sends = task.kind == Kind::kSend;
    if (task.peer == communicator.rank()) {
      (sends ? own_sends : own_receives).push_back(&task);
    } else {
      void* const data = sends ? const_cast<void*>(task.send) : task.receive;
      transfers.push_back({sends, task.peer, static_cast<char*>(data), task.count * size_of(task.type)});
    }
  }
  return copy_own(communicator, own_sends, own_receives) && exchange(communicator, transfers);
}

}  // namespace onebit::nccl_stand_in
