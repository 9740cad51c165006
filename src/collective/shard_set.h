// Which files of a directory belong together: those that the ranks of one job saved at one moment.
//
// A save that is cut short leaves files of two moments, and a job that ran on 4, then 2, then again 4 ranks
// leaves files of both numbers in one directory. What is loaded is the newest, whole, or nothing. Threads:
// any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collective/shard_file.h"

namespace onebit::collective {

/// When in a job its state was saved: equal on all ranks that saved between the same two calls.
struct SaveMoment {
  std::uint64_t job = 0;   ///< of the communicator, random
  std::uint64_t call = 0;  ///< the last one before the save
  bool operator==(const SaveMoment&) const = default;
};

/// What a file's header says of its save.
struct SaveStamp {
  SaveMoment moment;
  std::int64_t time = 0;  ///< ns since 1970

  static SaveStamp now(const SaveMoment& moment);
};

/// The files that ranks of one number saved.
struct ShardSet {
  std::size_t ranks = 0;
  std::map<std::string, SaveMoment> moments;  ///< by path, of those with an intact header
  std::int64_t time = 0;                      ///< of the newest
};

/// The sets in `directory`, the newest first; one in which no header is intact counts as newest, so that what
/// is wrong with it is told. kDataError when there is none. `what` ("residuals of a communicator") is for
/// that error.
Result<std::vector<ShardSet>> find_shards(const std::string& directory, std::string_view name,
                                          std::string_view extension, std::string_view what,
                                          const std::function<Result<SaveStamp>(ShardReader&)>& read_stamp);

/// Ok when all files of `set` are of `moment`, which is that of `path`.
Status check_one_moment(const ShardSet& set, const std::string& path, const SaveMoment& moment);

}  // namespace onebit::collective
