// The file of a checkpoint: its headers, and which elements lie where in it. See checkpoint.h and
// docs/format.md.
//
// Invariant: what save writes and load reads goes through these, in one order. No state.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "collective/partition.h"
#include "collective/shard_set.h"
#include "optimizer/layout.h"

namespace onebit::optimizer {

constexpr std::array<char, 8> kStateMagic{'1', 'B', 'O', 'P', 'T', 'I', 'M', '\0'};
constexpr std::uint32_t kStateVersion = 3;
constexpr std::string_view kStateExtension = "optimizer";

struct StateHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t rank;
  std::uint8_t kind;
  std::uint8_t compat;
  std::uint8_t whole;  // shared arrays are whole, not a shard
  std::uint8_t reserved;
  collective::SaveStamp stamp;  // its call is the step
  std::uint64_t elements;       // of all tensors, without padding
  std::uint64_t text;           // bytes of the tensors' description
  std::uint32_t numbers;        // fp64
  std::uint32_t arrays;
  std::uint32_t own_arrays;  // a bit for each array: not shared
  std::uint32_t residuals;
};
static_assert(sizeof(StateHeader) == 80);

struct ResidualHeader {
  std::uint64_t count;
  std::uint64_t owner_elements;
};

/// A line a tensor: a state belongs to these.
inline std::string describe_tensors(const Layout& layout) {
  std::string text;
  for (const TensorSpec& tensor : layout.tensors())
    text += formatted("'{}' of {} elements\n", tensor.name, tensor.count);
  return text;
}

inline std::size_t used_elements(const Layout& layout) {
  std::size_t used = 0;
  for (const Layout::Unit& unit : layout.units()) used += unit.used;
  return used;
}

/// Calls body(begin in the flat state, length) for the stretches of `range`, which counts without padding.
template <typename Body>
Status for_stretches(const Layout& layout, collective::Range range, const Body& body) {
  std::size_t passed = 0;
  for (const Layout::Unit& unit : layout.units()) {
    const std::size_t begin = std::max(range.begin, passed);
    const std::size_t end = std::min(range.begin + range.length, passed + unit.used);
    if (begin < end) ONEBIT_RETURN_IF_ERROR(body(unit.begin + (begin - passed), end - begin));
    passed += unit.used;
  }
  return Status();
}

/// The stretches behind the tensors of each unit.
template <typename Body>
Status for_padding(const Layout& layout, const Body& body) {
  for (const Layout::Unit& unit : layout.units()) {
    if (unit.padded != unit.used)
      ONEBIT_RETURN_IF_ERROR(body(unit.begin + unit.used, unit.padded - unit.used));
  }
  return Status();
}

}  // namespace onebit::optimizer
