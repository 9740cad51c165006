#include "collective/shard_set.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace onebit::collective {

SaveStamp SaveStamp::now(const SaveMoment& moment) {
  using std::chrono::nanoseconds;
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return {moment, std::chrono::duration_cast<nanoseconds>(time).count()};
}

Result<std::vector<ShardSet>> find_shards(const std::string& directory, std::string_view name,
                                          std::string_view extension, std::string_view what,
                                          const std::function<Result<SaveStamp>(ShardReader&)>& read_stamp) {
  ONEBIT_ASSIGN_OR_RETURN(const auto saved, saved_shards(directory, name, extension));
  if (saved.empty()) {
    return Status::error(Code::kDataError, "{} has no {} '{}'", directory, what, name);
  }
  std::vector<ShardSet> sets;
  for (const auto& [ranks, paths] : saved) {
    ShardSet& set = sets.emplace_back();
    set.ranks = ranks;
    for (const std::string& path : paths) {
      auto reader = ShardReader::open(path);
      if (!reader.ok()) continue;
      const auto stamp = read_stamp(*reader);
      if (!stamp.ok()) continue;
      set.time = std::max(set.time, stamp->time);
      set.moments.emplace(path, stamp->moment);
    }
    if (set.moments.empty()) set.time = std::numeric_limits<std::int64_t>::max();
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const ShardSet& a, const ShardSet& b) { return a.time > b.time; });
  return sets;
}

Status check_one_moment(const ShardSet& set, const std::string& path, const SaveMoment& moment) {
  for (const auto& [other, its] : set.moments) {
    if (its == moment) continue;
    return Status::error(Code::kDataError,
                         "{} and {} were saved at different moments (after call {} and after call {}{}): a "
                         "save was cut short; load an older directory, or remove these files",
                         path, other, moment.call, its.call, its.job == moment.job ? "" : " of another job");
  }
  return Status();
}

}  // namespace onebit::collective
