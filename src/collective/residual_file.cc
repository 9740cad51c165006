#include "collective/residual_file.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "collective/partition.h"
#include "collective/shard_file.h"

namespace onebit::collective {
namespace {

constexpr std::array<char, 8> kMagic{'1', 'B', 'R', 'E', 'S', 'I', 'D', '\0'};
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kLongestTag = 1024;
constexpr std::string_view kExtension = "residuals";

struct FileHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t rank;
  std::uint32_t entries;
  SaveStamp stamp;
};
static_assert(sizeof(FileHeader) == 48);

struct EntryHeader {
  std::uint32_t tag_length;
  std::uint8_t type;
  std::uint8_t op;
  std::uint16_t reserved;
  std::uint64_t count;
  std::uint64_t owner_elements;
};
static_assert(sizeof(EntryHeader) == 24);

Status write_entries(const ResidualStore& store, const SaveMoment& moment, ShardWriter& writer) {
  const auto& entries = store.entries();
  const auto good = [](const auto& entry) { return !entry.second.in_call; };
  FileHeader header{kMagic,
                    kVersion,
                    static_cast<std::uint32_t>(store.ranks()),
                    static_cast<std::uint32_t>(store.rank()),
                    static_cast<std::uint32_t>(std::count_if(entries.begin(), entries.end(), good)),
                    SaveStamp::now(moment)};
  ONEBIT_RETURN_IF_ERROR(writer.write(&header, sizeof header));
  for (const auto& entry : entries) {
    const auto& [tag, residual] = entry;
    if (!good(entry)) {
      log(LogLevel::kWarn, "residuals of tag '{}' not saved: the call that was changing them failed", tag);
      continue;
    }
    const EntryHeader head{static_cast<std::uint32_t>(tag.size()),
                           static_cast<std::uint8_t>(residual.type),
                           static_cast<std::uint8_t>(residual.op),
                           0,
                           residual.count,
                           residual.owner_error.size()};
    ONEBIT_RETURN_IF_ERROR(writer.write(&head, sizeof head));
    ONEBIT_RETURN_IF_ERROR(writer.write(tag.data(), tag.size()));
    ONEBIT_RETURN_IF_ERROR(writer.write(residual.worker_error.data(), residual.worker_error.bytes()));
    ONEBIT_RETURN_IF_ERROR(writer.write(residual.owner_error.data(), residual.owner_error.bytes()));
  }
  return writer.write_checksum();
}

Status read_entry(ShardReader& reader, std::size_t rank, std::size_t ranks, ResidualStore::Map& entries) {
  EntryHeader head{};
  ONEBIT_RETURN_IF_ERROR(reader.read(&head, sizeof head));
  const std::uint64_t most = reader.left() / sizeof(float);
  const auto type = static_cast<DataType>(head.type);
  const auto op = static_cast<ReduceOp>(head.op);
  if (head.tag_length == 0 || head.tag_length > kLongestTag || head.count > most ||
      head.owner_elements > most || !is_compressible(type) || name_of(op) == "unknown" ||
      head.owner_elements != PartitionPlan(head.count, ranks, 1).partition(rank).length) {
    return Status(Code::kDataError, "an entry's header is damaged or does not fit its rank");
  }
  std::string tag(head.tag_length, '\0');
  ONEBIT_RETURN_IF_ERROR(reader.read(tag.data(), tag.size()));
  Residual residual;
  residual.count = head.count;
  residual.type = type;
  residual.op = op;
  ONEBIT_ASSIGN_OR_RETURN(residual.worker_error, AlignedBuffer<float>::create(head.count));
  ONEBIT_ASSIGN_OR_RETURN(residual.owner_error, AlignedBuffer<float>::create(head.owner_elements));
  ONEBIT_RETURN_IF_ERROR(reader.read(residual.worker_error.data(), residual.worker_error.bytes()));
  ONEBIT_RETURN_IF_ERROR(reader.read(residual.owner_error.data(), residual.owner_error.bytes()));
  if (!entries.emplace(std::move(tag), std::move(residual)).second) {
    return Status(Code::kDataError, "it has a tag twice");
  }
  return Status();
}

Result<FileHeader> read_header(ShardReader& reader) {
  FileHeader header{};
  ONEBIT_RETURN_IF_ERROR(reader.read(&header, sizeof header));
  if (header.magic != kMagic) return Status(Code::kDataError, "it is not a file of residuals");
  if (header.version != kVersion) {
    return Status::error(Code::kDataError, "it has version {}, this library reads {}", header.version,
                         kVersion);
  }
  return header;
}

Result<SaveStamp> read_stamp(ShardReader& reader) {
  ONEBIT_ASSIGN_OR_RETURN(const FileHeader header, read_header(reader));
  return header.stamp;
}

struct File {
  ResidualStore::Map entries;
  SaveMoment moment;
};

Result<File> read_file(const std::string& path, std::size_t rank, std::size_t ranks) {
  const auto read = [&]() -> Result<File> {
    ONEBIT_ASSIGN_OR_RETURN(ShardReader reader, ShardReader::open(path));
    ONEBIT_ASSIGN_OR_RETURN(const FileHeader header, read_header(reader));
    if (header.rank != rank || header.ranks != ranks) {
      return Status::error(Code::kDataError, "it holds rank {} of {}, not rank {} of {}", header.rank,
                           header.ranks, rank, ranks);
    }
    File file;
    file.moment = header.stamp.moment;
    for (std::uint32_t i = 0; i < header.entries; ++i) {
      ONEBIT_RETURN_IF_ERROR(read_entry(reader, rank, ranks, file.entries));
    }
    ONEBIT_RETURN_IF_ERROR(reader.check());
    ONEBIT_RETURN_IF_ERROR(reader.check_end());
    return file;
  };
  auto file = read();
  if (!file.ok()) return file.status().with_context(path);
  return file;
}

/// Adds what rank `store.rank()` inherits from rank `from` of `old_ranks`.
Status inherit(ResidualStore::Map&& old, std::size_t from, std::size_t old_ranks, const ResidualStore& store,
               ResidualStore::Map& entries) {
  for (auto& [tag, given] : old) {
    auto found = entries.find(tag);
    if (found == entries.end()) {
      ONEBIT_ASSIGN_OR_RETURN(
          Residual fresh, Residual::create(given.count, given.type, given.op, store.rank(), store.ranks()));
      found = entries.emplace(tag, std::move(fresh)).first;
    }
    Residual& mine = found->second;
    if (mine.count != given.count || mine.type != given.type || mine.op != given.op) {
      return Status::error(Code::kDataError, "tag '{}' has another shape than in the file of rank 0", tag);
    }
    inherit_residual(given, from, old_ranks, store.rank(), store.ranks(), mine);
  }
  return Status();
}

}  // namespace

Status save_residuals(const ResidualStore& store, std::string_view name, const std::string& directory,
                      const SaveMoment& moment) {
  const std::string path = shard_path(directory, name, kExtension, store.rank(), store.ranks());
  return write_shard(directory, path,
                     [&](ShardWriter& writer) { return write_entries(store, moment, writer); })
      .with_context(formatted("save residuals to {}", path));
}

Result<SaveMoment> load_residuals(ResidualStore& store, std::string_view name, const std::string& directory) {
  ONEBIT_ASSIGN_OR_RETURN(
      const auto sets, find_shards(directory, name, kExtension, "residuals of a communicator", read_stamp));
  const ShardSet& set = sets.front();
  const std::size_t old_ranks = set.ranks;
  const auto path_of = [&](std::size_t rank) {
    return shard_path(directory, name, kExtension, rank, old_ranks);
  };
  if (old_ranks == store.ranks()) {
    const std::string path = path_of(store.rank());
    ONEBIT_ASSIGN_OR_RETURN(File own, read_file(path, store.rank(), old_ranks));
    ONEBIT_RETURN_IF_ERROR(check_one_moment(set, path, own.moment));
    store.replace(std::move(own.entries));
    return own.moment;
  }
  ResidualStore::Map entries;
  SaveMoment moment;
  for (std::size_t from = 0; from < old_ranks; ++from) {
    const std::string path = path_of(from);
    ONEBIT_ASSIGN_OR_RETURN(File old, read_file(path, from, old_ranks));
    moment = old.moment;
    ONEBIT_RETURN_IF_ERROR(check_one_moment(set, path, moment));
    if (const Status status = inherit(std::move(old.entries), from, old_ranks, store, entries);
        !status.ok()) {
      return status.with_context(path);
    }
  }
  log(LogLevel::kInfo, "residuals of {} ranks in {} reshared among {}", old_ranks, directory, store.ranks());
  store.replace(std::move(entries));
  return moment;
}

}  // namespace onebit::collective
