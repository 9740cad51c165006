// The published test vectors: cases in tests/codec/vectors/index.json, their arrays in one binary file a
// case. docs/format.md, section 8, says how to read them.
#pragma once

#include <filesystem>
#include <fstream>
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

inline void write_vectors(const std::filesystem::path& folder, const std::vector<VectorCase>& cases) {
  nlohmann::ordered_json index = {{"format", 1}, {"cases", nlohmann::ordered_json::array()}};
  for (const VectorCase& one : cases) {
    nlohmann::ordered_json entry = one.about;
    const std::string file = one.about.at("name").get<std::string>() + ".bin";
    entry["file"] = file;
    std::ofstream out(folder / file, std::ios::binary);
    std::size_t offset = 0;
    for (const auto& [name, bytes] : one.arrays) {
      entry["arrays"].push_back({{"name", name}, {"offset", offset}, {"bytes", bytes.size()}});
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      offset += bytes.size();
    }
    index["cases"].push_back(entry);
  }
  std::ofstream(folder / "index.json") << index.dump(1) << "\n";
}

inline std::vector<VectorCase> read_vectors(const std::filesystem::path& folder) {
  const nlohmann::json index = nlohmann::json::parse(std::ifstream(folder / "index.json"));
  std::vector<VectorCase> cases;
  for (const nlohmann::json& entry : index.at("cases")) {
    VectorCase one{entry, {}};
    std::ifstream in(folder / entry.at("file").get<std::string>(), std::ios::binary);
    const Bytes all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (const nlohmann::json& array : entry.at("arrays")) {
      const auto offset = array.at("offset").get<std::ptrdiff_t>();
      const auto bytes = array.at("bytes").get<std::ptrdiff_t>();
      if (offset + bytes > static_cast<std::ptrdiff_t>(all.size()))
        throw std::out_of_range("truncated vectors");
      one.arrays.emplace_back(array.at("name"), Bytes(all.begin() + offset, all.begin() + offset + bytes));
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

template <typename T>
T* as(Bytes& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}
template <typename T>
const T* as(const Bytes& bytes) {
  return reinterpret_cast<const T*>(bytes.data());
}

/// Runs the case's operation and gives its outputs by the names that the files use.
inline std::vector<std::pair<std::string, Bytes>> run_case(const Implementation& by, const VectorCase& one) {
  const auto& about = one.about;
  const auto operation = about.at("operation").get<std::string>();
  const auto type = *parse_data_type(about.at("type").get<std::string>());
  const auto n = about.at("elements").get<std::size_t>();
  const auto block = about.at("block").get<std::uint32_t>();
  const Scale scale = about.at("scale") == "rms" ? Scale::kRms : Scale::kMean;
  const Parameters parameters{block, scale};
  const auto world = about.value("world", std::size_t{0});
  const float factor = world == 0 ? 1.0f : 1.0f / static_cast<float>(world);
  std::vector<Packed> pieces;
  for (std::size_t r = 0; r < world; ++r) {
    pieces.push_back({as<std::byte>(one.array("scales" + std::to_string(r))),
                      one.array("bits" + std::to_string(r)).data()});
  }
  Bytes scales(4 * scale_count(n, block)), bits(bit_bytes(n)), sums(4 * sub_block_count(n));
  if (operation == "encode") {
    Bytes error = one.array("error");
    by.encode(type, one.array("x").data(), n, parameters, as<float>(error), as<std::byte>(scales),
              bits.data());
    return {{"new_error", error}, {"scales", scales}, {"bits", bits}};
  }
  if (operation == "average") {
    Bytes error = one.array("error");
    by.average(pieces, n, factor, parameters, as<float>(error), as<std::byte>(scales), bits.data());
    return {{"new_error", error}, {"scales", scales}, {"bits", bits}};
  }
  if (operation == "decode") {
    Bytes y(n * size_of(type));
    by.decode(type, {as<std::byte>(one.array("scales")), one.array("bits").data()}, n, parameters, y.data());
    return {{"y", y}};
  }
  if (operation == "whole") {
    Bytes error = one.array("error"), whole(4);
    by.sums(type, one.array("x").data(), n, scale, as<float>(error), as<float>(sums));
    *as<float>(whole) = whole_scale({as<float>(sums), sub_block_count(n)}, n, scale);
    by.quantize(type, one.array("x").data(), n, *as<float>(whole), as<float>(error), bits.data());
    return {{"sums", sums}, {"scales", whole}, {"new_error", error}, {"bits", bits}};
  }
  if (operation == "accumulate") {
    Bytes averaged(4 * n);
    by.accumulate(pieces, n, factor, scale, as<float>(one.array("error")), as<float>(averaged),
                  as<float>(sums));
    return {{"averaged", averaged}, {"sums", sums}};
  }
  throw std::invalid_argument(operation);
}

}  // namespace onebit::codec::test
