// Checkpoint::load: reads the files of all old ranks, agrees with the other ranks, and only then changes
// anything.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "base/log.h"
#include "collective/shard_file.h"
#include "optimizer/checkpoint.h"
#include "optimizer/checkpoint_format.h"
#include "optimizer/optimizer.h"

namespace onebit::optimizer {
namespace {

using collective::AlignedBuffer;
using collective::PartitionPlan;
using collective::Range;
using collective::Residual;
using collective::ShardReader;

constexpr std::uint64_t kMostText = std::uint64_t{1} << 30;

Result<StateHeader> read_header(ShardReader& reader) {
  StateHeader header{};
  ONEBIT_RETURN_IF_ERROR(reader.read(&header, sizeof header));
  if (header.magic != kStateMagic) return Status(Code::kDataError, "it is not a state of an optimizer");
  if (header.version != kStateVersion) {
    return Status::error(Code::kDataError, "it has version {}, this library reads {}", header.version,
                         kStateVersion);
  }
  return header;
}

Result<collective::SaveStamp> read_stamp(ShardReader& reader) {
  ONEBIT_ASSIGN_OR_RETURN(const StateHeader header, read_header(reader));
  return header.stamp;
}

std::string different_tensor(std::string_view saved, std::string_view here) {
  for (;;) {
    const std::string_view a = saved.substr(0, saved.find('\n'));
    const std::string_view b = here.substr(0, here.find('\n'));
    if (a != b) {
      return formatted("it has tensor {} where this optimizer has {}", a.empty() ? "(none)" : a,
                       b.empty() ? "(none)" : b);
    }
    saved.remove_prefix(a.size() + 1);
    here.remove_prefix(b.size() + 1);
  }
}

}  // namespace

/// What has been read, before it replaces anything.
struct Checkpoint::Loaded {
  std::size_t ranks = 0;  ///< that have saved it
  collective::SaveMoment moment;
  std::size_t elements = 0;
  std::vector<double> numbers;
  std::vector<AlignedBuffer<float>> arrays;  ///< on the host; the weights last
  std::vector<Residual> residuals;
};

/// The file of an old rank.
struct Checkpoint::File {
  std::size_t from = 0;
  std::string path;
  std::optional<ShardReader> reader;  ///< none: there is no such file
  StateHeader header{};
  std::vector<double> numbers;
  bool exists() const { return reader.has_value(); }
  bool is_own(std::size_t array) const { return (header.own_arrays >> array & 1) != 0; }
  /// Its part of the shared arrays.
  Range shard() const {
    if (header.whole != 0) return {0, header.elements};
    return PartitionPlan(header.elements, header.ranks, 1).partition(from);
  }
  /// Steps tell within a run, times between runs.
  bool is_newer(const File& other) const {
    const auto &mine = header.stamp, &theirs = other.header.stamp;
    return mine.moment.job == theirs.moment.job ? mine.moment.call > theirs.moment.call
                                                : mine.time > theirs.time;
  }
  bool same_moment(const File& other) const {
    return header.stamp.moment == other.header.stamp.moment && header.own_arrays == other.header.own_arrays &&
           numbers.size() == other.numbers.size() &&
           std::memcmp(numbers.data(), other.numbers.data(), numbers.size() * sizeof(double)) == 0;
  }
};

Status Checkpoint::load(const std::string& directory, std::optional<std::int64_t> step) {
  Core& core = *optimizer_.core_;
  Exchange& exchange = core.exchange();
  ONEBIT_RETURN_IF_ERROR(exchange.usable());
  ONEBIT_RETURN_IF_ERROR(optimizer_.algorithm_->fetch_numbers());
  Loaded loaded;
  ONEBIT_ASSIGN_OR_RETURN(const std::uint64_t run, Optimizer::random_run());
  const Status own = read(directory, step, loaded);

  struct Word {
    std::uint64_t loaded = 0;
    collective::SaveMoment moment;
    std::uint64_t ranks = 0;
    std::uint64_t run = 0;  // the new one
  };
  const Word mine = own.ok() ? Word{1, loaded.moment, loaded.ranks, run} : Word();
  std::vector<Word> all(exchange.ranks());
  ONEBIT_RETURN_IF_ERROR(exchange.all_gather(&mine, all.data(), sizeof mine));
  ONEBIT_RETURN_IF_ERROR(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Word& word = all[rank];
    if (word.loaded == 0) {
      return Status::error(
          Code::kDataError,
          "rank {} cannot load the state from what it sees as {} (its error says why), so no "
          "rank loads it",
          rank, directory);
    }
    if (word.moment == mine.moment && word.ranks == mine.ranks) continue;
    return Status::error(Code::kDataError,
                         "{} holds states of different moments: rank {} sees step {} of {} ranks{}, rank {} "
                         "step {} of {} ranks; no rank loads any",
                         directory, rank, optimizer_.steps_of(word.moment.call), word.ranks,
                         word.moment.job == mine.moment.job ? "" : " of another run", exchange.rank(),
                         optimizer_.steps_of(mine.moment.call), mine.ranks);
  }
  ONEBIT_RETURN_IF_ERROR(commit(loaded));
  optimizer_.run_ = all[0].run;
  if (loaded.ranks != exchange.ranks() && exchange.rank() == 0) {
    log(LogLevel::kInfo, "optimizer '{}': the state of {} ranks in {} is shared out among {}",
        core.options().name, loaded.ranks, directory, exchange.ranks());
  }
  return Status();
}

Status Checkpoint::read(const std::string& directory, std::optional<std::int64_t> step, Loaded& loaded) {
  Core& core = *optimizer_.core_;
  std::vector<File> files;
  ONEBIT_RETURN_IF_ERROR(find(directory, step, files));
  loaded.ranks = files.size();
  loaded.elements = used_elements(core.layout());
  for (std::size_t i = 0; i < optimizer_.algorithm_->arrays().size() + 1; ++i) {
    ONEBIT_ASSIGN_OR_RETURN(auto array, AlignedBuffer<float>::create(core.layout().elements()));
    loaded.arrays.push_back(std::move(array));
  }
  for (std::size_t unit = 0; unit < core.exchange().units(); ++unit) {
    ONEBIT_ASSIGN_OR_RETURN(
        Residual fresh, Residual::create(core.layout().units()[unit].padded, DataType::kFloat32,
                                         ReduceOp::kAvg, core.exchange().rank(), core.exchange().ranks()));
    loaded.residuals.push_back(std::move(fresh));
  }
  for (File& file : files) {
    if (!file.reader) continue;
    Status status = read_arrays(file, loaded);
    if (status.ok()) status = read_own(file, files, loaded);
    if (!status.ok()) return status.with_context(file.path);
    loaded.moment = file.header.stamp.moment;
    loaded.numbers = file.numbers;
  }
  return Status();
}

Status Checkpoint::find(const std::string& directory, std::optional<std::int64_t> step,
                        std::vector<File>& files) {
  Core& core = *optimizer_.core_;
  ONEBIT_ASSIGN_OR_RETURN(const auto sets,
                          collective::find_shards(directory, core.options().name, kStateExtension,
                                                  "state of an optimizer", read_stamp));
  std::string others;  // that cannot be loaded, or are not to be
  for (const collective::ShardSet& set : sets) {
    files = std::vector<File>(set.ranks);
    const Status status = open_all(directory, files);
    // What is wrong with the newest files is told, not passed over.
    if (!status.ok() && others.empty()) return status;
    if (status.ok() && choose(files, step)) {
      if (!others.empty() && core.exchange().rank() == 0) {
        log(LogLevel::kWarn, "optimizer '{}': {} has newer files{}; what is loaded is of {} ranks: {}",
            core.options().name, directory, others, files.size(), describe(files));
      }
      return Status();
    }
    append_formatted(others, "; of {} ranks: {}", set.ranks,
                     status.ok() ? describe(files) : status.message());
  }
  return Status::error(
      Code::kDataError, "{} has no state '{}'{} that all ranks have saved at one moment{}: {}", directory,
      core.options().name, step ? formatted(" of step {}", *step) : std::string(), others,
      "where a save was cut short, load an older directory, and save to one of its own each time");
}

Status Checkpoint::open_all(const std::string& directory, std::vector<File>& files) {
  for (std::size_t from = 0; from < files.size(); ++from) {
    const Status status = open(directory, from, files.size(), files[from]);
    if (!status.ok()) return status.with_context(files[from].path);
  }
  return Status();
}

Status Checkpoint::open(const std::string& directory, std::size_t from, std::size_t old_ranks, File& file) {
  Core& core = *optimizer_.core_;
  file.from = from;
  file.path = collective::shard_path(directory, core.options().name, kStateExtension, from, old_ranks);
  if (!std::filesystem::exists(file.path)) return Status();
  ONEBIT_ASSIGN_OR_RETURN(ShardReader reader, ShardReader::open(file.path));
  ONEBIT_ASSIGN_OR_RETURN(file.header, read_header(reader));
  const StateHeader& header = file.header;
  if (header.rank != from || header.ranks != old_ranks) {
    return Status::error(Code::kDataError, "it holds rank {} of {}, not rank {} of {}", header.rank,
                         header.ranks, from, old_ranks);
  }
  if (header.kind != static_cast<std::uint8_t>(core.options().kind) ||
      header.compat != (core.compat() ? 1 : 0)) {
    return Status::error(Code::kDataError, "it is the state of {}{}, not of {}{}",
                         name_of(static_cast<Kind>(header.kind)),
                         header.compat != 0 ? " in deepspeed_compat" : "", name_of(core.options().kind),
                         core.compat() ? " in deepspeed_compat" : "");
  }
  std::string text(std::min({header.text, kMostText, reader.left()}), '\0');
  ONEBIT_RETURN_IF_ERROR(reader.read(text.data(), text.size()));
  if (const std::string here = describe_tensors(core.layout()); text != here) {
    return Status(Code::kDataError, different_tensor(text, here));
  }
  std::size_t count = 0;
  optimizer_.visit_numbers([&](double&) { ++count; });
  if (header.numbers != count || header.arrays != optimizer_.algorithm_->arrays().size() + 1 ||
      header.elements != used_elements(core.layout()) || header.own_arrays >> header.arrays != 0) {
    return Status(Code::kDataError,
                  "its header is damaged, or its groups or its norm_factor are not those of this optimizer");
  }
  file.numbers.resize(count);
  ONEBIT_RETURN_IF_ERROR(reader.read(file.numbers.data(), count * sizeof(double)));
  ONEBIT_RETURN_IF_ERROR(reader.check());
  file.reader = std::move(reader);
  return Status();
}

std::int64_t Checkpoint::step_of(const File& file) const {
  return optimizer_.steps_of(file.header.stamp.moment.call);
}

std::string Checkpoint::describe(const std::vector<File>& files) const {
  std::map<std::string, std::vector<std::size_t>> ranks;
  const auto first = std::find_if(files.begin(), files.end(), std::mem_fn(&File::exists));
  for (const File& file : files) {
    std::string what = "no file";
    if (file.reader) {
      const bool is_other = file.header.stamp.moment.job != first->header.stamp.moment.job;
      what = formatted("step {}{}", step_of(file), is_other ? " of another run" : "");
    }
    ranks[what].push_back(file.from);
  }
  std::string text;
  for (const auto& [what, of] : ranks) {
    append_formatted(text, "{}{} of rank{}", text.empty() ? "" : ", ", what, of.size() == 1 ? "" : "s");
    for (const std::size_t rank : of) append_formatted(text, " {}", rank);
  }
  return text;
}

bool Checkpoint::choose(std::vector<File>& files, std::optional<std::int64_t> step) const {
  const auto is_wanted = [&](const File& file) { return file.reader && (!step || step_of(file) == *step); };
  const bool are_one = std::all_of(files.begin(), files.end(), [&](const File& file) {
    return is_wanted(file) && file.same_moment(files[0]);
  });
  if (are_one) return true;
  const File* latest = nullptr;  // whole
  for (const File& file : files) {
    if (is_wanted(file) && file.header.whole != 0 && (latest == nullptr || file.is_newer(*latest)))
      latest = &file;
  }
  if (latest == nullptr) return false;
  // With the same number of ranks each warns of its own file, else rank 0 of all.
  const Exchange& exchange = optimizer_.core_->exchange();
  const bool same = files.size() == exchange.ranks();
  for (File& file : files) {
    if (file.reader && file.same_moment(*latest)) continue;
    if (exchange.rank() == (same ? file.from : 0)) {
      log(LogLevel::kWarn,
          "optimizer '{}': {} is missing or of another moment; its rank's residuals are taken as 0, the rest "
          "from {}, step {}",
          optimizer_.core_->options().name, file.path, latest->path, step_of(*latest));
    }
    file.reader.reset();
  }
  return true;
}

Status Checkpoint::read_arrays(File& file, Loaded& loaded) {
  const Layout& layout = optimizer_.core_->layout();
  for (std::size_t i = 0; i < loaded.arrays.size(); ++i) {
    if (file.is_own(i)) continue;
    ONEBIT_RETURN_IF_ERROR(for_stretches(layout, file.shard(), [&](std::size_t begin, std::size_t length) {
      return file.reader->read(loaded.arrays[i].data() + begin, length * sizeof(float));
    }));
  }
  return file.reader->check();
}

Status Checkpoint::read_own(File& file, const std::vector<File>& files, Loaded& loaded) {
  Core& core = *optimizer_.core_;
  const Layout& layout = core.layout();
  const std::size_t rank = core.exchange().rank();
  const std::size_t ranks = core.exchange().ranks();
  const bool same = files.size() == ranks;
  const bool has_own = same && files[rank].reader.has_value();
  if (has_own && file.from != rank) return Status();  // the rest is that rank's own
  const auto readers = std::count_if(files.begin(), files.end(), std::mem_fn(&File::exists));
  ShardReader& reader = *file.reader;
  for (std::size_t i = 0; i < loaded.arrays.size(); ++i) {
    if (!file.is_own(i)) continue;
    ONEBIT_ASSIGN_OR_RETURN(auto theirs, AlignedBuffer<float>::create(layout.elements()));
    ONEBIT_RETURN_IF_ERROR(
        for_stretches(layout, {0, loaded.elements}, [&](std::size_t begin, std::size_t length) {
          return reader.read(theirs.data() + begin, length * sizeof(float));
        }));
    const float weight = has_own ? 1.0F : 1.0F / static_cast<float>(readers);
    for (std::size_t k = 0; k < theirs.size(); ++k) loaded.arrays[i].data()[k] += weight * theirs.data()[k];
  }
  if (core.compat() && !same) return Status();  // its padding and partitions are of the old number of ranks
  ONEBIT_RETURN_IF_ERROR(for_padding(layout, [&](std::size_t begin, std::size_t length) {
    return reader.read(loaded.arrays[0].data() + begin, length * sizeof(float));  // arrays[0] is m
  }));
  for (std::size_t unit = 0; unit < file.header.residuals; ++unit) {
    ResidualHeader head{};
    ONEBIT_RETURN_IF_ERROR(reader.read(&head, sizeof head));
    const Layout::Unit* const known = unit < layout.units().size() ? &layout.units()[unit] : nullptr;
    if (known == nullptr || head.count != known->padded ||
        head.owner_elements != PartitionPlan(known->padded, files.size(), 1).partition(file.from).length) {
      return Status(Code::kDataError, "its residuals do not fit its tensors");
    }
    ONEBIT_ASSIGN_OR_RETURN(Residual theirs, Residual::create(head.count, DataType::kFloat32, ReduceOp::kAvg,
                                                              file.from, files.size()));
    ONEBIT_RETURN_IF_ERROR(reader.read(theirs.worker_error.data(), theirs.worker_error.bytes()));
    ONEBIT_RETURN_IF_ERROR(reader.read(theirs.owner_error.data(), theirs.owner_error.bytes()));
    if (unit < loaded.residuals.size()) {
      collective::inherit_residual(theirs, file.from, files.size(), rank, ranks, loaded.residuals[unit]);
    }
  }
  ONEBIT_RETURN_IF_ERROR(reader.check());
  return reader.check_end();
}

Status Checkpoint::commit(Loaded& loaded) {
  Core& core = *optimizer_.core_;
  std::size_t at = 0;
  optimizer_.visit_numbers([&](double& number) { number = loaded.numbers[at++]; });
  const auto arrays = optimizer_.algorithm_->arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    auto& from = loaded.arrays[i];
    ONEBIT_RETURN_IF_ERROR(core.space().write(arrays[i].array->data(), from.data(), from.bytes()));
  }
  ONEBIT_RETURN_IF_ERROR(core.write_weights(loaded.arrays.back().data()));
  for (std::size_t unit = 0; unit < loaded.residuals.size(); ++unit) {
    ONEBIT_RETURN_IF_ERROR(core.exchange().set_residual(unit, std::move(loaded.residuals[unit])));
  }
  return optimizer_.algorithm_->restored();
}

}  // namespace onebit::optimizer
