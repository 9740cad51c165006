// Residuals on disk: one file a rank, written whole or not at all, read only when it is intact.
//
// File "NAME.rank-R-of-W.residuals", little endian:
//   magic "1BRESID\0", version u32, ranks u32, rank u32, entries u32,
//   the moment of the save: job u64, call u64; its time: ns since 1970, i64
//   an entry:  tag length u32, type u8, op u8, reserved u16, count u64, owner elements u64, tag,
//              worker errors (fp32 x count), owner errors (fp32 x owner elements)
//   XXH64 of all bytes before it, u64
// How files are written and checked is in shard_file.h. Threads: any, on different directories.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "collective/residual_store.h"
#include "collective/shard_set.h"

namespace onebit::collective {

/// Saves all entries that no failed call has spoilt. Makes `directory` if it is missing.
Status save_residuals(const ResidualStore& store, std::string_view name, const std::string& directory,
                      const SaveMoment& moment);

/// Replaces the entries of `store` by the newest that ranks of the same or another number saved. For another
/// number W' of ranks, this rank takes the worker errors of the old ranks o with o % W = rank, summed, times
/// W / W' for AVG (so that the sum that is owed keeps its weight), and the owner errors of its new partition.
/// kDataError, with the store as before, when a file that is needed is missing or damaged, or when the files
/// seen are not of one moment.
Result<SaveMoment> load_residuals(ResidualStore& store, std::string_view name, const std::string& directory);

}  // namespace onebit::collective
