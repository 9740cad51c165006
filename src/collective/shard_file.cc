#include "collective/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "bootstrap/launcher.h"

namespace onebit::collective {
namespace {

/// A communicator's name may hold anything, a file name may not: such characters become %XX, so that
/// different names stay different.
std::string file_stem(std::string_view name) {
  std::string stem;
  for (const char c : name) {
    if (c == '/' || c == '%' || static_cast<unsigned char>(c) < ' ') {
      stem += formatted("%{:02X}", static_cast<unsigned char>(c));
    } else {
      stem += c;
    }
  }
  return stem;
}

/// The W of "NAME.rank-R-of-W.EXTENSION"; 0 for other files.
std::size_t ranks_of_file(std::string_view file, std::string_view prefix, std::string_view suffix) {
  if (!file.starts_with(prefix) || !file.ends_with(suffix) || file.size() < prefix.size() + suffix.size())
    return 0;
  const std::string_view numbers = file.substr(prefix.size(), file.size() - prefix.size() - suffix.size());
  const auto of = numbers.find("-of-");
  if (of == std::string_view::npos) return 0;
  const auto number = [](std::string_view text) {
    std::size_t value = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    return failure == std::errc{} && rest == text.data() + text.size() ? std::optional(value) : std::nullopt;
  };
  const auto rank = number(numbers.substr(0, of));
  const auto ranks = number(numbers.substr(of + 4));
  return rank && ranks && *rank < *ranks && *ranks <= bootstrap::kMaxWorldSize ? *ranks : 0;
}

}  // namespace

RunningChecksum::RunningChecksum() : state_(XXH64_createState()) {
  XXH64_reset(state_.get(), 0);
}

void RunningChecksum::Free::operator()(XXH64_state_s* state) const noexcept {
  XXH64_freeState(state);
}

void RunningChecksum::add(const void* data, std::size_t bytes) noexcept {
  XXH64_update(state_.get(), data, bytes);
}

std::uint64_t RunningChecksum::digest() const noexcept {
  return XXH64_digest(state_.get());
}

Status ShardWriter::write(const void* data, std::size_t bytes) {
  checksum_.add(data, bytes);
  return write_raw(data, bytes);
}

Status ShardWriter::write_checksum() {
  const std::uint64_t digest = checksum_.digest();
  return write_raw(&digest, sizeof digest);
}

Status ShardWriter::write_raw(const void* data, std::size_t bytes) {
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

Result<ShardReader> ShardReader::open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Status::system(errno, "open");
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Status::system(errno, "fstat");
  return ShardReader(std::move(fd), static_cast<std::uint64_t>(info.st_size));
}

Status ShardReader::read(void* data, std::size_t bytes) {
  ONEBIT_RETURN_IF_ERROR(read_raw(data, bytes));
  checksum_.add(data, bytes);
  return Status();
}

Status ShardReader::check() {
  const std::uint64_t due = checksum_.digest();
  std::uint64_t stored = 0;
  ONEBIT_RETURN_IF_ERROR(read_raw(&stored, sizeof stored));
  if (stored != due) return Status(Code::kDataError, "its checksum is wrong: the file is damaged");
  return Status();
}

Status ShardReader::check_end() const {
  if (left_ != 0) return Status::error(Code::kDataError, "{} bytes follow its end", left_);
  return Status();
}

Status ShardReader::read_raw(void* data, std::size_t bytes) {
  if (bytes > left_) return Status(Code::kDataError, "it is truncated");
  auto* at = static_cast<char*>(data);
  left_ -= bytes;
  while (bytes != 0) {
    const ssize_t got = ::read(fd_.get(), at, std::min<std::size_t>(bytes, 1U << 30));
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

std::string shard_path(const std::string& directory, std::string_view name, std::string_view extension,
                       std::size_t rank, std::size_t ranks) {
  return formatted("{}/{}.rank-{}-of-{}.{}", directory, file_stem(name), rank, ranks, extension);
}

Result<std::map<std::size_t, std::vector<std::string>>> saved_shards(const std::string& directory,
                                                                     std::string_view name,
                                                                     std::string_view extension) {
  std::map<std::size_t, std::vector<std::string>> found;
  const std::string prefix = file_stem(name) + ".rank-";
  const std::string suffix = formatted(".{}", extension);
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::size_t ranks = ranks_of_file(at->path().filename().string(), prefix, suffix);
    if (ranks != 0) found[ranks].push_back(at->path().string());
  }
  if (error) return Status::system(error.value(), formatted("read directory {}", directory));
  return found;
}

Status write_shard(const std::string& directory, const std::string& path,
                   const std::function<Status(ShardWriter&)>& body) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Status::system(error.value(), formatted("make directory {}", directory));
  const std::string unfinished = path + ".tmp";  // one that a crash has left is written over
  const auto write = [&]() -> Status {
    UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) return Status::system(errno, "open");
    ShardWriter writer(fd.get());
    ONEBIT_RETURN_IF_ERROR(body(writer));
    if (::fsync(fd.get()) != 0) return Status::system(errno, "fsync");
    if (::close(fd.release()) != 0) return Status::system(errno, "close");
    if (::rename(unfinished.c_str(), path.c_str()) != 0) return Status::system(errno, "rename");
    return Status();
  };
  const Status status = write();
  if (!status.ok()) {
    ::unlink(unfinished.c_str());
    return status;
  }
  // The new name must survive a crash of the machine too.
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return Status::system(errno, formatted("fsync {}", directory));
  return Status();
}

}  // namespace onebit::collective
