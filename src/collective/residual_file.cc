#include "collective/residual_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "collective/partition.h"

namespace onebit::collective {
namespace {

constexpr std::array<char, 8> kMagic{'1', 'B', 'R', 'E', 'S', 'I', 'D', '\0'};
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kLongestTag = 1024;

struct FileHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t rank;
  std::uint32_t entries;
  SaveMoment moment;
  std::int64_t time;
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

using Hash = std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)>;
Hash new_hash() {
  Hash hash(XXH64_createState(), XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  return hash;
}

std::string file_stem(std::string_view name) {
  // A communicator's name may hold anything; a file name may not.
  std::string stem(name);
  std::replace_if(
      stem.begin(), stem.end(), [](unsigned char c) { return c == '/' || c < ' '; }, '_');
  return stem;
}

std::string file_name(std::string_view name, std::size_t rank, std::size_t ranks) {
  return fmt::format("{}.rank-{}-of-{}.residuals", file_stem(name), rank, ranks);
}

/// Writes and hashes.
class Writer {
 public:
  explicit Writer(int fd) : fd_(fd), hash_(new_hash()) {}
  Status write(const void* data, std::size_t bytes) {
    XXH64_update(hash_.get(), data, bytes);
    return write_raw(data, bytes);
  }
  Status write_hash() {
    const std::uint64_t digest = XXH64_digest(hash_.get());
    return write_raw(&digest, sizeof digest);
  }

 private:
  Status write_raw(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes != 0) {
      const ssize_t written = ::write(fd_, at, std::min<std::size_t>(bytes, 1U << 30));
      if (written < 0) {
        if (errno == EINTR) continue;
        return Status::system(errno, "write");
      }
      at += written;
      bytes -= static_cast<std::size_t>(written);
    }
    return Status();
  }
  int fd_;
  Hash hash_;
};

/// Reads and hashes; an end of file where more is due is an error.
class Reader {
 public:
  Reader(int fd, std::uint64_t size) : fd_(fd), left_(size), hash_(new_hash()) {}
  std::uint64_t left() const { return left_; }
  Status read(void* data, std::size_t bytes) {
    ONEBIT_RETURN_IF_ERROR(read_raw(data, bytes));
    XXH64_update(hash_.get(), data, bytes);
    return Status();
  }
  Status check_hash() {
    const std::uint64_t due = XXH64_digest(hash_.get());
    std::uint64_t stored = 0;
    ONEBIT_RETURN_IF_ERROR(read_raw(&stored, sizeof stored));
    if (stored != due) return Status(Code::kDataError, "its checksum is wrong: the file is damaged");
    if (left_ != 0) return Status::error(Code::kDataError, "{} bytes follow its end", left_);
    return Status();
  }

 private:
  Status read_raw(void* data, std::size_t bytes) {
    if (bytes > left_) return Status(Code::kDataError, "it is truncated");
    auto* at = static_cast<char*>(data);
    left_ -= bytes;
    while (bytes != 0) {
      const ssize_t got = ::read(fd_, at, std::min<std::size_t>(bytes, 1U << 30));
      if (got < 0) {
        if (errno == EINTR) continue;
        return Status::system(errno, "read");
      }
      if (got == 0) return Status(Code::kDataError, "it is truncated");
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return Status();
  }
  int fd_;
  std::uint64_t left_;
  Hash hash_;
};

std::int64_t nanoseconds_now() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Status write_entries(const ResidualStore& store, const SaveMoment& moment, Writer& writer) {
  const auto& entries = store.entries();
  const auto good = [](const auto& entry) { return !entry.second.in_call; };
  FileHeader header{kMagic,
                    kVersion,
                    static_cast<std::uint32_t>(store.ranks()),
                    static_cast<std::uint32_t>(store.rank()),
                    static_cast<std::uint32_t>(std::count_if(entries.begin(), entries.end(), good)),
                    moment,
                    nanoseconds_now()};
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
  return writer.write_hash();
}

Status read_entry(Reader& reader, std::size_t rank, std::size_t ranks, ResidualStore::Map& entries) {
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

Result<FileHeader> read_header(Reader& reader) {
  FileHeader header{};
  ONEBIT_RETURN_IF_ERROR(reader.read(&header, sizeof header));
  if (header.magic != kMagic) return Status(Code::kDataError, "it is not a file of residuals");
  if (header.version != kVersion) {
    return Status::error(Code::kDataError, "it has version {}, this library reads {}", header.version,
                         kVersion);
  }
  return header;
}

struct File {
  ResidualStore::Map entries;
  SaveMoment moment;
};

/// What `use` makes of the file at `path`.
template <typename T>
Result<T> with_file(const std::string& path, const std::function<Result<T>(Reader&)>& use) {
  const auto opened = [&]() -> Result<T> {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return Status::system(errno, "open");
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return Status::system(errno, "fstat");
    Reader reader(fd.get(), static_cast<std::uint64_t>(info.st_size));
    return use(reader);
  };
  auto result = opened();
  if (!result.ok()) return result.status().with_context(path);
  return result;
}

Result<File> read_file(const std::string& path, std::size_t rank, std::size_t ranks) {
  return with_file<File>(path, [&](Reader& reader) -> Result<File> {
    ONEBIT_ASSIGN_OR_RETURN(const FileHeader header, read_header(reader));
    if (header.rank != rank || header.ranks != ranks) {
      return Status::error(Code::kDataError, "it holds rank {} of {}, not rank {} of {}", header.rank,
                           header.ranks, rank, ranks);
    }
    File file;
    file.moment = header.moment;
    for (std::uint32_t i = 0; i < header.entries; ++i) {
      ONEBIT_RETURN_IF_ERROR(read_entry(reader, rank, ranks, file.entries));
    }
    ONEBIT_RETURN_IF_ERROR(reader.check_hash());
    return file;
  });
}

/// The files in a directory that ranks of one number saved.
struct SavedSet {
  std::map<std::string, SaveMoment> moments;  ///< by path, of those with an intact header
  /// Of the newest; a set without an intact header comes first, so that what is wrong with it is told.
  std::int64_t time = std::numeric_limits<std::int64_t>::max();
};

/// What `directory` has of the communicator `name`, by the number of ranks.
Result<std::map<std::size_t, SavedSet>> saved_sets(std::string_view name, const std::string& directory) {
  std::map<std::size_t, SavedSet> found;
  const std::string prefix = file_stem(name) + ".rank-";
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string file = at->path().filename().string();
    const auto of = file.find("-of-", prefix.size());
    if (file.compare(0, prefix.size(), prefix) != 0 || of == std::string::npos) continue;
    std::size_t ranks = 0;
    const char* const digits = file.data() + of + 4;
    const auto [rest, failure] = std::from_chars(digits, file.data() + file.size(), ranks);
    if (failure != std::errc{} || std::string_view(rest) != ".residuals" || ranks == 0) continue;
    SavedSet& set = found[ranks];
    const auto header = with_file<FileHeader>(at->path().string(), read_header);
    if (!header.ok()) continue;
    set.time = set.moments.empty() ? header->time : std::max(set.time, header->time);
    set.moments.emplace(at->path().string(), header->moment);
  }
  if (error) return Status::system(error.value(), fmt::format("read directory {}", directory));
  return found;
}

/// Ok when all files of `set` are of `moment`, which is that of `path`.
Status check_one_moment(const SavedSet& set, const std::string& path, const SaveMoment& moment) {
  for (const auto& [other, its] : set.moments) {
    if (its == moment) continue;
    return Status::error(
        Code::kDataError,
        "{} and {} were saved at different moments (after call {} and after call {}{}): a save "
        "was cut short; load an older directory, or go on without residuals",
        path, other, moment.call, its.call, its.job == moment.job ? "" : " of another job");
  }
  return Status();
}

/// Adds what rank `store.rank()` inherits from rank `from` of `old_ranks`.
Status inherit(ResidualStore::Map&& old, std::size_t from, std::size_t old_ranks, const ResidualStore& store,
               ResidualStore::Map& entries) {
  for (auto& [tag, given] : old) {
    auto found = entries.find(tag);
    if (found == entries.end()) {
      Residual fresh;
      fresh.count = given.count;
      fresh.type = given.type;
      fresh.op = given.op;
      ONEBIT_ASSIGN_OR_RETURN(fresh.worker_error, AlignedBuffer<float>::create(given.count));
      const std::size_t owned = PartitionPlan(given.count, store.ranks(), 1).partition(store.rank()).length;
      ONEBIT_ASSIGN_OR_RETURN(fresh.owner_error, AlignedBuffer<float>::create(owned));
      found = entries.emplace(tag, std::move(fresh)).first;
    }
    Residual& mine = found->second;
    if (mine.count != given.count || mine.type != given.type || mine.op != given.op) {
      return Status::error(Code::kDataError, "tag '{}' has another shape than in the file of rank 0", tag);
    }
    if (from % store.ranks() == store.rank()) {
      const float weight = given.op == ReduceOp::kAvg
                               ? static_cast<float>(store.ranks()) / static_cast<float>(old_ranks)
                               : 1.0F;
      for (std::size_t i = 0; i < given.count; ++i)
        mine.worker_error.data()[i] += weight * given.worker_error.data()[i];
    }
    const Range theirs = PartitionPlan(given.count, old_ranks, 1).partition(from);
    const Range ours = PartitionPlan(given.count, store.ranks(), 1).partition(store.rank());
    const std::size_t begin = std::max(theirs.begin, ours.begin);
    const std::size_t end = std::min(theirs.begin + theirs.length, ours.begin + ours.length);
    if (begin < end) {
      std::memcpy(mine.owner_error.data() + (begin - ours.begin),
                  given.owner_error.data() + (begin - theirs.begin), (end - begin) * sizeof(float));
    }
  }
  return Status();
}

}  // namespace

Status save_residuals(const ResidualStore& store, std::string_view name, const std::string& directory,
                      const SaveMoment& moment) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Status::system(error.value(), fmt::format("make directory {}", directory));
  const std::string path = fmt::format("{}/{}", directory, file_name(name, store.rank(), store.ranks()));
  const std::string unfinished = fmt::format("{}.{}.tmp", path, getpid());
  const auto write = [&]() -> Status {
    UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) return Status::system(errno, "open");
    Writer writer(fd.get());
    ONEBIT_RETURN_IF_ERROR(write_entries(store, moment, writer));
    if (::fsync(fd.get()) != 0) return Status::system(errno, "fsync");
    if (::close(fd.release()) != 0) return Status::system(errno, "close");
    if (::rename(unfinished.c_str(), path.c_str()) != 0) return Status::system(errno, "rename");
    return Status();
  };
  const Status status = write();
  if (!status.ok()) {
    ::unlink(unfinished.c_str());
    return status.with_context(fmt::format("save residuals to {}", path));
  }
  // The new name must survive a crash of the machine too.
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return Status::system(errno, fmt::format("fsync {}", directory));
  return Status();
}

Result<SaveMoment> load_residuals(ResidualStore& store, std::string_view name, const std::string& directory) {
  ONEBIT_ASSIGN_OR_RETURN(const auto saved, saved_sets(name, directory));
  if (saved.empty()) {
    return Status::error(Code::kDataError, "{} has no residuals of a communicator '{}'", directory, name);
  }
  const auto newest = std::max_element(
      saved.begin(), saved.end(), [](const auto& a, const auto& b) { return a.second.time < b.second.time; });
  const auto& [old_ranks, set] = *newest;
  const auto path_of = [&, ranks = old_ranks](std::size_t rank) {
    return fmt::format("{}/{}", directory, file_name(name, rank, ranks));
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
    if (from == 0) {
      moment = old.moment;
      ONEBIT_RETURN_IF_ERROR(check_one_moment(set, path, moment));
    }
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
