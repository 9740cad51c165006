#include "collective/residual_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "collective/partition.h"

namespace onebit::collective {

Result<Residual> Residual::create(std::size_t count, DataType type, ReduceOp op, std::size_t rank,
                                  std::size_t ranks) {
  Residual fresh;
  fresh.count = count;
  fresh.type = type;
  fresh.op = op;
  ONEBIT_ASSIGN_OR_RETURN(fresh.worker_error, AlignedBuffer<float>::create(count));
  const std::size_t owned = PartitionPlan(count, ranks, 1).partition(rank).length;
  ONEBIT_ASSIGN_OR_RETURN(fresh.owner_error, AlignedBuffer<float>::create(owned));
  return fresh;
}

void inherit_residual(const Residual& given, std::size_t from, std::size_t old_ranks, std::size_t rank,
                      std::size_t ranks, Residual& mine) {
  if (from % ranks == rank) {
    const float weight =
        given.op == ReduceOp::kAvg ? static_cast<float>(ranks) / static_cast<float>(old_ranks) : 1.0F;
    for (std::size_t i = 0; i < given.count; ++i)
      mine.worker_error.data()[i] += weight * given.worker_error.data()[i];
  }
  const Range theirs = PartitionPlan(given.count, old_ranks, 1).partition(from);
  const Range ours = PartitionPlan(given.count, ranks, 1).partition(rank);
  const std::size_t begin = std::max(theirs.begin, ours.begin);
  const std::size_t end = std::min(theirs.begin + theirs.length, ours.begin + ours.length);
  if (begin < end) {
    std::memcpy(mine.owner_error.data() + (begin - ours.begin),
                given.owner_error.data() + (begin - theirs.begin), (end - begin) * sizeof(float));
  }
}

ResidualSquares squares(const Residual& residual) {
  if (residual.in_call) return {};  // counts as 0
  const auto sum = [](const AlignedBuffer<float>& values) {
    return std::accumulate(values.data(), values.data() + values.size(), 0.0, [](double total, float value) {
      return total + static_cast<double>(value) * static_cast<double>(value);
    });
  };
  return {sum(residual.worker_error), sum(residual.owner_error)};
}

Result<Residual*> ResidualStore::get(std::string_view tag, std::size_t count, DataType type, ReduceOp op) {
  auto found = entries_.find(tag);
  if (found != entries_.end()) {
    Residual& residual = found->second;
    if (residual.count == count && residual.type == type && residual.op == op && !residual.in_call)
      return &residual;
    if (!residual.in_call) {
      log(LogLevel::kWarn, "residuals of tag '{}' dropped: it was {} x {} {}, now it is {} x {} {}", tag,
          residual.count, name_of(residual.type), name_of(residual.op), count, name_of(type), name_of(op));
    }
    entries_.erase(found);
  }
  ONEBIT_ASSIGN_OR_RETURN(Residual fresh, Residual::create(count, type, op, rank_, ranks_));
  return &entries_.emplace(std::string(tag), std::move(fresh)).first->second;
}

void ResidualStore::reset(std::string_view tag) {
  if (tag.empty()) {
    entries_.clear();
    return;
  }
  if (const auto found = entries_.find(tag); found != entries_.end()) entries_.erase(found);
}

std::size_t ResidualStore::memory(std::string_view tag) const {
  std::size_t bytes = 0;
  for (const auto& [name, residual] : entries_) {
    if (tag.empty() || name == tag) bytes += residual.worker_error.bytes() + residual.owner_error.bytes();
  }
  return bytes;
}

ResidualSquares ResidualStore::squares(std::string_view tag) const {
  ResidualSquares sum;
  for (const auto& [name, residual] : entries_) {
    if (tag.empty() || name == tag) sum += collective::squares(residual);
  }
  return sum;
}

}  // namespace onebit::collective
