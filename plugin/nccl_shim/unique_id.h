// Sealed unique ids: how ranks learn, before they meet, whether all of them have the shim.
//
// With ONEBIT_COMPRESS set, ncclGetUniqueId hands out sealed ids, and the functions that make communicators
// open them again. NCCL takes a sealed id for an address of an unknown family: a rank without the shim fails
// in ncclCommInitRank at once, where its first collective would else meet one of ours. An id that comes
// unsealed was made by a process without the shim; its communicator is not compressed. Pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "cuda/real_nccl.h"

namespace onebit::shim {

using nccl::UniqueId;

/// At the end of a sealed id, where NCCL has zeros: its own part is a number and the address of a socket.
constexpr std::array<char, 16> kSeal = {'o', 'n', 'e', 'b', 'i', 't', ' ', 's',
                                        'h', 'i', 'm', ' ', 'i', 'd', ' ', '1'};
constexpr std::size_t kSealAt = sizeof(UniqueId) - kSeal.size();

/// What is before the seal, made unreadable for NCCL, or readable again.
inline void scramble(UniqueId& id) {
  constexpr char kPad = 0x5a;
  for (std::size_t i = 0; i < kSealAt; ++i) id.bytes[i] = static_cast<char>(id.bytes[i] ^ kPad);
}
inline bool is_sealed(const UniqueId& id) {
  return std::equal(kSeal.begin(), kSeal.end(), id.bytes + kSealAt);
}
/// An id of some NCCL that has no room stays as it is.
inline void seal(UniqueId& id) {
  const char* const place = id.bytes + kSealAt;
  if (std::any_of(place, place + kSeal.size(), [](char c) { return c != 0; })) return;
  scramble(id);
  std::copy(kSeal.begin(), kSeal.end(), id.bytes + kSealAt);
}
inline UniqueId opened(UniqueId id) {
  if (!is_sealed(id)) return id;
  std::fill_n(id.bytes + kSealAt, kSeal.size(), 0);
  scramble(id);
  return id;
}

}  // namespace onebit::shim
