// The names of this process's communicators: two of different jobs must not save under one name.
//
// Ranks of one communicator that are threads of one process share name and job, and have files of their own.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace onebit::collective {

/// A name in use, until the object goes.
class LiveName {
 public:
  LiveName(std::string name, std::uint64_t job);
  ~LiveName();
  LiveName(const LiveName&) = delete;
  LiveName& operator=(const LiveName&) = delete;
  /// Whether a communicator of another job has it, too.
  bool is_shared() const;

 private:
  const std::string name_;
  const std::uint64_t job_;
};

}  // namespace onebit::collective
