#include "vectors.h"

#include <fstream>
#include <iterator>

namespace onebit::codec::test {
namespace {

/// A case's parameters, and its pieces where it has any.
struct Call {
  Call(const Implementation& implementation, const VectorCase& vector_case)
      : by(implementation), one(vector_case) {
    const nlohmann::json& about = one.about;
    type = *parse_data_type(about.at("type").get<std::string>());
    n = about.at("elements").get<std::size_t>();
    parameters.block = about.at("block").get<std::uint32_t>();
    parameters.scale = about.at("scale").get<std::string>() == "rms" ? Scale::kRms : Scale::kMean;
    const auto world = about.value("world", std::size_t{0});
    if (world != 0) factor = 1.0f / static_cast<float>(world);
    for (std::size_t r = 0; r < world; ++r) {
      const std::string rank = std::to_string(r);
      pieces.push_back({as<std::byte>(one.array("scales" + rank)), one.array("bits" + rank).data()});
    }
  }

  Bytes scales() const { return Bytes(4 * scale_count(n, parameters.block)); }
  Bytes bits() const { return Bytes(bit_bytes(n)); }
  Bytes sums() const { return Bytes(4 * sub_block_count(n)); }

  const Implementation& by;
  const VectorCase& one;
  DataType type = DataType::kFloat32;
  std::size_t n = 0;
  Parameters parameters;
  float factor = 1;
  std::vector<Packed> pieces;
};

void add(Arrays& arrays, const char* name, Bytes& bytes) {
  arrays.emplace_back(name, std::move(bytes));
}

/// encode, or average when the case has pieces.
Arrays run_coding(const Call& call) {
  Bytes error = call.one.array("error"), scales = call.scales(), bits = call.bits();
  if (call.pieces.empty()) {
    call.by.encode(call.type, call.one.array("x").data(), call.n, call.parameters, as<float>(error),
                   as<std::byte>(scales), bits.data());
  } else {
    call.by.average(call.pieces, call.n, call.factor, call.parameters, as<float>(error),
                    as<std::byte>(scales), bits.data());
  }
  Arrays arrays;
  add(arrays, "new_error", error);
  add(arrays, "scales", scales);
  add(arrays, "bits", bits);
  return arrays;
}

Arrays run_decode(const Call& call) {
  Bytes y(call.n * size_of(call.type));
  const Packed piece{as<std::byte>(call.one.array("scales")), call.one.array("bits").data()};
  call.by.decode(call.type, piece, call.n, call.parameters, y.data());
  Arrays arrays;
  add(arrays, "y", y);
  return arrays;
}

Arrays run_whole(const Call& call) {
  const Scale rule = call.parameters.scale;
  const void* const x = call.one.array("x").data();
  Bytes error = call.one.array("error"), sums = call.sums(), scales(4), bits = call.bits();
  call.by.sums(call.type, x, call.n, rule, as<float>(error), as<float>(sums));
  const float scale = whole_scale({as<float>(sums), sub_block_count(call.n)}, call.n, rule);
  *as<float>(scales) = scale;
  call.by.quantize(call.type, x, call.n, scale, as<float>(error), bits.data());
  Arrays arrays;
  add(arrays, "sums", sums);
  add(arrays, "scales", scales);
  add(arrays, "new_error", error);
  add(arrays, "bits", bits);
  return arrays;
}

Arrays run_accumulate(const Call& call) {
  Bytes averaged(4 * call.n), sums = call.sums();
  call.by.accumulate(call.pieces, call.n, call.factor, call.parameters.scale,
                     as<float>(call.one.array("error")), as<float>(averaged), as<float>(sums));
  Arrays arrays;
  add(arrays, "averaged", averaged);
  add(arrays, "sums", sums);
  return arrays;
}

}  // namespace

Arrays run_case(const Implementation& by, const VectorCase& one) {
  const Call call(by, one);
  const auto operation = one.about.at("operation").get<std::string>();
  if (operation == "encode" || operation == "average") return run_coding(call);
  if (operation == "decode") return run_decode(call);
  if (operation == "whole") return run_whole(call);
  if (operation == "accumulate") return run_accumulate(call);
  throw std::invalid_argument(operation);
}

void write_vectors(const std::filesystem::path& folder, const std::vector<VectorCase>& cases) {
  nlohmann::ordered_json index;
  index["format"] = 1;
  for (const VectorCase& one : cases) {
    nlohmann::ordered_json entry = one.about;
    const std::string file = one.about.at("name").get<std::string>() + ".bin";
    entry["file"] = file;
    std::ofstream out(folder / file, std::ios::binary);
    std::size_t offset = 0;
    for (const auto& [name, bytes] : one.arrays) {
      nlohmann::ordered_json array;
      array["name"] = name;
      array["offset"] = offset;
      array["bytes"] = bytes.size();
      entry["arrays"].push_back(array);
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      offset += bytes.size();
    }
    index["cases"].push_back(entry);
  }
  std::ofstream(folder / "index.json") << index.dump(1) << "\n";
}

std::vector<VectorCase> read_vectors(const std::filesystem::path& folder) {
  std::ifstream index_file(folder / "index.json");
  const nlohmann::json index = nlohmann::json::parse(index_file);
  std::vector<VectorCase> cases;
  for (const nlohmann::json& entry : index.at("cases")) {
    VectorCase one;
    one.about = entry;
    std::ifstream in(folder / entry.at("file").get<std::string>(), std::ios::binary);
    const Bytes all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (const nlohmann::json& array : entry.at("arrays")) {
      const auto offset = array.at("offset").get<std::ptrdiff_t>();
      const auto bytes = array.at("bytes").get<std::ptrdiff_t>();
      if (offset + bytes > static_cast<std::ptrdiff_t>(all.size()))
        throw std::out_of_range("truncated vectors");
      one.arrays.emplace_back(array.at("name").get<std::string>(),
                              Bytes(all.begin() + offset, all.begin() + offset + bytes));
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace onebit::codec::test
