// The published test vectors: cases in tests/codec/vectors/index.json, their arrays in one binary file a
// case. docs/format.md, section 8, says how to read them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_data.h"

namespace onebit::codec::test {

/// An array of a case: raw little-endian elements.
using Bytes = std::vector<std::uint8_t>;

struct VectorCase {
  nlohmann::json about;
  std::vector<std::pair<std::string, Bytes>> arrays;

  const Bytes& array(const std::string& name) const {
    for (const auto& [own_name, bytes] : arrays) {
      if (own_name == name) return bytes;
    }
    throw std::out_of_range(about.at("name").get<std::string>() + " has no array " + name);
  }
};

template <typename T>
T* as(Bytes& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}
template <typename T>
const T* as(const Bytes& bytes) {
  return reinterpret_cast<const T*>(bytes.data());
}

using Arrays = std::vector<std::pair<std::string, Bytes>>;

/// Runs the case's operation and gives its outputs by the names that the files use.
Arrays run_case(const Implementation& by, const VectorCase& one);
void write_vectors(const std::filesystem::path& folder, const std::vector<VectorCase>& cases);
std::vector<VectorCase> read_vectors(const std::filesystem::path& folder);

}  // namespace onebit::codec::test
