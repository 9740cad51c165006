// The state of an optimizer on disk: one file a rank, which hold it together.
//
// "NAME.rank-R-of-W.optimizer", little endian (docs/format.md has the fields): what is equal on all ranks is
// cut into W shards by element, so that it is on the disk once; what is a rank's own (residuals; between the
// syncs of 0/1 Adam also weights, momentum and moves) is in its file whole. The header and each of these
// parts end in a checksum. Weights are part of the state. Loading needs the files of all old ranks. The same
// number of ranks goes on bit for bit. Another number: residuals are shared out as those of a communicator
// are, and where ranks had weights of their own, each new rank gets their mean. Loading is collective: all
// ranks load the newest state that all ranks of a number have saved at one moment (or the one of a step that
// is asked for), or none loads anything and the error says which rank saved which step.
//
// A moment is a step of a run. A run begins with an optimizer's first step and with each load, and has a
// random number, so that files of one step, but of before and after a load, are told apart.
//
// Files can also be *whole*: each has everything. They are when a program asks for it, and once the
// communicator has failed, as some rank may never write its own. Where files are missing or of several
// moments, the latest whole ones stand for all; the residuals of ranks that are missing count as 0. Files are
// written and checked as collective/shard_file.h says. Threads: as Optimizer's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace onebit::optimizer {

class Optimizer;

class Checkpoint {
 public:
  explicit Checkpoint(Optimizer& optimizer) : optimizer_(optimizer) {}
  /// Local.
  Status save(const std::string& directory, bool whole);
  /// Collective. `step`: the only one to load, as Optimizer::steps counts; none: the newest.
  Status load(const std::string& directory, std::optional<std::int64_t> step);

 private:
  struct Loaded;
  struct File;
  /// Reads all that is to be loaded; changes nothing.
  Status read(const std::string& directory, std::optional<std::int64_t> step, Loaded& loaded);
  /// The files to load, of all sets in the directory.
  Status find(const std::string& directory, std::optional<std::int64_t> step, std::vector<File>& files);
  Status open_all(const std::string& directory, std::vector<File>& files);
  /// Opens a file and reads what comes before its arrays.
  Status open(const std::string& directory, std::size_t from, std::size_t old_ranks, File& file);
  /// Which of the opened files make a state, of `step` if there is one; false where none do.
  bool choose(std::vector<File>& files, std::optional<std::int64_t> step) const;
  std::int64_t step_of(const File& file) const;
  /// Which rank saved which step.
  std::string describe(const std::vector<File>& files) const;
  Status read_arrays(File& file, Loaded& loaded);
  Status read_own(File& file, const std::vector<File>& files, Loaded& loaded);
  Status commit(Loaded& loaded);

  Optimizer& optimizer_;
};

}  // namespace onebit::optimizer
