// Files of a state that the ranks hold together: one file a rank, "NAME.rank-R-of-W.EXTENSION", written whole
// or not at all, read only when it is intact.
//
// A new file is written beside the old one, flushed to the disk and then renamed over it: a full disk or a
// crash leaves the old one. Checksums (XXH64, seed 0, u64) stand where the writer puts them, each of all
// bytes before it; what lies behind the last one read is not trusted. All numbers are little endian. Threads:
// any, on different files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

struct XXH64_state_s;

namespace onebit::collective {

/// The checksum of the bytes that have gone through a file.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(const void* data, std::size_t bytes) noexcept;
  std::uint64_t digest() const noexcept;

 private:
  struct Free {
    void operator()(XXH64_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH64_state_s, Free> state_;
};

class ShardWriter {
 public:
  explicit ShardWriter(int fd) : fd_(fd) {}
  Status write(const void* data, std::size_t bytes);
  /// The checksum of all that has been written, itself not part of the next one.
  Status write_checksum();

 private:
  Status write_raw(const void* data, std::size_t bytes);
  int fd_;
  RunningChecksum checksum_;
};

/// An end of file where more is due is an error.
class ShardReader {
 public:
  static Result<ShardReader> open(const std::string& path);
  std::uint64_t left() const { return left_; }
  Status read(void* data, std::size_t bytes);
  /// Compares what has been read with the checksum that follows.
  Status check();
  /// Nothing may follow.
  Status check_end() const;

 private:
  ShardReader(UniqueFd fd, std::uint64_t size) : fd_(std::move(fd)), left_(size) {}
  Status read_raw(void* data, std::size_t bytes);
  UniqueFd fd_;
  std::uint64_t left_;
  RunningChecksum checksum_;
};

/// The file of `rank` in `directory`; characters of `name` that a file name cannot hold become '_'.
std::string shard_path(const std::string& directory, std::string_view name, std::string_view extension,
                       std::size_t rank, std::size_t ranks);

/// The files with this name in `directory`, by the number of ranks that they say they are of.
Result<std::map<std::size_t, std::vector<std::string>>> saved_shards(const std::string& directory,
                                                                     std::string_view name,
                                                                     std::string_view extension);

/// Makes `directory` if it is missing, and the file `path` in it of what `body` writes.
Status write_shard(const std::string& directory, const std::string& path,
                   const std::function<Status(ShardWriter&)>& body);

}  // namespace onebit::collective
