// What a rank says of itself when it joins, and what all ranks know of each other afterwards.
//
// Encodings are bounded: a decoder gives an error for anything longer, shorter or out of range. Value types.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/handshake.h"

namespace onebit::bootstrap {

struct Member {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t job = 0;  ///< hash of the job id
  std::uint32_t pid = 0;
  std::uint64_t machine = 0;              ///< hash of the kernel's boot id
  std::string version;                    ///< of the library
  std::string host;                       ///< host name
  std::chrono::milliseconds patience{0};  ///< how long it will wait for the others

  /// "10.0.0.3 (node3, pid 4242)".
  std::string where(std::string_view address) const;
};

/// This process as a member.
Member this_member(int rank, int world_size, std::string_view job_id, std::chrono::milliseconds patience);

std::vector<std::byte> encode_member(const Member& member);
Result<Member> decode_member(std::span<const std::byte> bytes);

/// What rank 0 sends when all have come.
struct Roll {
  struct Entry {
    std::string where;
    std::uint64_t machine = 0;
  };
  Key salt{};  ///< the job key is made from it and the rendezvous' key
  std::vector<Entry> entries;
};

std::vector<std::byte> encode_roll(const Roll& roll);
Result<Roll> decode_roll(std::span<const std::byte> bytes, std::size_t world_size);

/// An error on its way to the other ranks.
std::vector<std::byte> encode_failure(const Status& failure);
Status decode_failure(std::span<const std::byte> bytes);

/// "1-3, 7": sorted numbers.
std::string ranges_of(const std::vector<int>& ranks);

}  // namespace onebit::bootstrap
