#include "collective/residual_store.h"

#include "base/log.h"
#include "collective/partition.h"

namespace onebit::collective {

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
  Residual fresh;
  fresh.count = count;
  fresh.type = type;
  fresh.op = op;
  ONEBIT_ASSIGN_OR_RETURN(fresh.worker_error, AlignedBuffer<float>::create(count));
  const std::size_t owned = PartitionPlan(count, ranks_, count).partition(rank_).length;
  ONEBIT_ASSIGN_OR_RETURN(fresh.owner_error, AlignedBuffer<float>::create(owned));
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

}  // namespace onebit::collective
