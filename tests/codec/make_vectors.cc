// Writes the published test vectors (docs/format.md, section 8) from the scalar reference: make_vectors
// FOLDER. Run it only when the format changes, and raise the frame's version then.
#include <iostream>

#include "vectors.h"

namespace onebit::codec::test {
namespace {

Bytes bytes_of(const Buffer& buffer) {
  const auto* const begin = buffer.as<std::uint8_t>();
  return {begin, begin + buffer.size()};
}

/// Scales with a NaN that is not the codec's own as the second.
Bytes scales_with_nan(Bytes scales) {
  const std::uint32_t nan = 0xffc00001;
  std::memcpy(scales.data() + 4, &nan, 4);
  return scales;
}

struct Recipe {
  std::string name, operation;
  DataType type;
  std::size_t elements;
  std::uint32_t block;
  Scale scale;
  Kind kind;
  std::size_t world = 0;
};

VectorCase make(const Recipe& recipe, std::uint64_t seed) {
  VectorCase made;
  made.about = {{"name", recipe.name},
                {"operation", recipe.operation},
                {"type", onebit::name_of(recipe.type)},
                {"elements", recipe.elements},
                {"block", recipe.block},
                {"scale", recipe.scale == Scale::kRms ? "rms" : "mean"}};
  const std::size_t n = recipe.elements;
  const std::size_t scales = scale_count(n, recipe.block);
  const bool has_x = recipe.operation == "encode" || recipe.operation == "whole";
  if (has_x) made.arrays.emplace_back("x", bytes_of(numbers(recipe.type, recipe.kind, n, seed)));
  if (recipe.operation == "decode") {
    made.arrays.emplace_back(
        "scales", scales_with_nan(bytes_of(numbers(DataType::kFloat32, recipe.kind, scales, seed))));
    made.arrays.emplace_back("bits", bytes_of(random_bytes(bit_bytes(n), seed)));
  } else {
    made.arrays.emplace_back("error", bytes_of(numbers(DataType::kFloat32, Kind::kRandom, n, seed + 1)));
  }
  if (recipe.world != 0) made.about["world"] = recipe.world;
  for (std::size_t r = 0; r < recipe.world; ++r) {
    made.arrays.emplace_back("scales" + std::to_string(r),
                             bytes_of(numbers(DataType::kFloat32, recipe.kind, scales, seed + 10 + r)));
    made.arrays.emplace_back("bits" + std::to_string(r),
                             bytes_of(random_bytes(bit_bytes(n), seed + 100 + r)));
  }
  if (recipe.kind == Kind::kNan && recipe.world != 0) {
    for (auto& [name, bytes] : made.arrays) {
      if (name == "scales0") bytes = scales_with_nan(bytes);
    }
  }
  for (auto& output : run_case(implementations().front(), made)) made.arrays.push_back(std::move(output));
  return made;
}

std::vector<VectorCase> make_all() {
  constexpr auto kF32 = DataType::kFloat32, kF16 = DataType::kFloat16, kBf16 = DataType::kBFloat16;
  const std::vector<Recipe> recipes = {
      {"encode-fp32-rms", "encode", kF32, 600, 256, Scale::kRms, Kind::kRandom},
      {"encode-fp32-mean", "encode", kF32, 600, 256, Scale::kMean, Kind::kRandom},
      {"encode-fp32-wide", "encode", kF32, 520, 512, Scale::kRms, Kind::kWideRange},
      {"encode-fp32-subnormal", "encode", kF32, 300, 256, Scale::kMean, Kind::kSubnormal},
      {"encode-fp32-huge", "encode", kF32, 300, 256, Scale::kMean, Kind::kHuge},
      {"encode-fp32-nan", "encode", kF32, 1100, 256, Scale::kRms, Kind::kNan},
      {"encode-fp16-rms", "encode", kF16, 601, 256, Scale::kRms, Kind::kRandom},
      {"encode-bf16-mean", "encode", kBf16, 599, 256, Scale::kMean, Kind::kRandom},
      {"encode-bf16-infinity", "encode", kBf16, 1100, 256, Scale::kRms, Kind::kInfinity},
      {"average-1", "average", kF32, 300, 256, Scale::kRms, Kind::kRandom, 1},
      {"average-3", "average", kF32, 600, 256, Scale::kRms, Kind::kRandom, 3},
      {"average-8-mean", "average", kF32, 300, 256, Scale::kMean, Kind::kWideRange, 8},
      {"average-2-nan", "average", kF32, 600, 256, Scale::kRms, Kind::kNan, 2},
      {"decode-fp32", "decode", kF32, 1030, 256, Scale::kRms, Kind::kWideRange},
      {"decode-fp16", "decode", kF16, 1030, 256, Scale::kRms, Kind::kWideRange},
      {"decode-bf16", "decode", kBf16, 1030, 256, Scale::kRms, Kind::kRandom},
      {"whole-bf16-rms", "whole", kBf16, 2100, kWhole, Scale::kRms, Kind::kRandom},
      {"whole-fp16-mean", "whole", kF16, 2100, kWhole, Scale::kMean, Kind::kRandom},
      {"accumulate-3", "accumulate", kF32, 2100, kWhole, Scale::kRms, Kind::kRandom, 3},
  };
  std::vector<VectorCase> cases;
  for (const Recipe& recipe : recipes) cases.push_back(make(recipe, 1000 * cases.size()));
  return cases;
}

}  // namespace
}  // namespace onebit::codec::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_vectors FOLDER\n";
    return 2;
  }
  onebit::codec::test::write_vectors(argv[1], onebit::codec::test::make_all());
  return 0;
}
