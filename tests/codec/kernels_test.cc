// Each SIMD implementation of this processor gives the bytes of the scalar reference, whatever the input.
#include <gtest/gtest.h>

#include <vector>

#include "test_data.h"

namespace onebit::codec::test {
namespace {

class EveryImplementation : public testing::TestWithParam<const Implementation*> {
 protected:
  const Implementation& reference = implementations().front();
  const Implementation& implementation = *GetParam();

  struct Coded {
    Buffer error, scales, bits;
    friend bool operator==(const Coded&, const Coded&) = default;
  };

  void encode_is_the_same(DataType type, Kind kind, std::size_t n, Parameters parameters,
                          std::size_t misalign) {
    const Buffer x = numbers(type, kind, n, n + 1, misalign * size_of(type));
    const Buffer e = numbers(DataType::kFloat32, Kind::kRandom, n, n + 2, misalign * 4);
    const auto run = [&](const Implementation& by) {
      Coded coded{e, Buffer(4 * scale_count(n, parameters.block), misalign), Buffer(bit_bytes(n), misalign)};
      by.encode(type, x.data(), n, parameters, coded.error.as<float>(), coded.scales.data(),
                coded.bits.as<std::uint8_t>());
      return coded;
    };
    const Coded expected = run(reference);
    const Coded found = run(implementation);
    ASSERT_EQ(found.scales, expected.scales) << onebit::name_of(type) << " " << name_of(kind) << " n=" << n;
    ASSERT_EQ(found.bits, expected.bits) << onebit::name_of(type) << " " << name_of(kind) << " n=" << n;
    ASSERT_EQ(found.error, expected.error) << onebit::name_of(type) << " " << name_of(kind) << " n=" << n;
  }

  struct Pieces {
    std::vector<Buffer> scales, bits;
    std::vector<Packed> packed;
  };

  static Pieces pieces(std::size_t world, std::size_t n, std::uint32_t block, Kind kind,
                       std::size_t misalign) {
    Pieces made;
    for (std::size_t r = 0; r < world; ++r) {
      made.scales.push_back(numbers(DataType::kFloat32, kind, scale_count(n, block), 10 * r + n, misalign));
      made.bits.push_back(random_bytes(bit_bytes(n), 11 * r + n, misalign));
    }
    for (std::size_t r = 0; r < world; ++r) {
      made.packed.push_back({made.scales[r].data(), made.bits[r].as<std::uint8_t>()});
    }
    return made;
  }

  void average_is_the_same(std::size_t world, Kind kind, std::size_t n, Parameters parameters,
                           std::size_t misalign) {
    const Pieces in = pieces(world, n, parameters.block, kind, misalign);
    const Buffer e = numbers(DataType::kFloat32, Kind::kRandom, n, n + 3, misalign * 4);
    const auto run = [&](const Implementation& by) {
      Coded coded{e, Buffer(4 * scale_count(n, parameters.block), misalign), Buffer(bit_bytes(n), misalign)};
      by.average(in.packed, n, 1.0f / static_cast<float>(world), parameters, coded.error.as<float>(),
                 coded.scales.data(), coded.bits.as<std::uint8_t>());
      return coded;
    };
    ASSERT_EQ(run(implementation), run(reference)) << "W=" << world << " " << name_of(kind) << " n=" << n;
  }

  void accumulate_is_the_same(std::size_t world, Kind kind, std::size_t n, Scale scale,
                              std::size_t misalign) {
    const Pieces in = pieces(world, n, kWhole, kind, misalign);
    const Buffer e = numbers(DataType::kFloat32, Kind::kRandom, n, n + 3, misalign * 4);
    const auto run = [&](const Implementation& by) {
      std::pair<Buffer, Buffer> out{Buffer(4 * n, misalign * 4),
                                    Buffer(4 * sub_block_count(n), misalign * 4)};
      by.accumulate(in.packed, n, 1.0f / static_cast<float>(world), scale, e.as<float>(),
                    out.first.as<float>(), out.second.as<float>());
      return out;
    };
    ASSERT_EQ(run(implementation), run(reference)) << "W=" << world << " " << name_of(kind) << " n=" << n;
  }

  void decode_is_the_same(DataType type, Kind kind, std::size_t n, std::uint32_t block,
                          std::size_t misalign) {
    const Pieces in = pieces(1, n, block, kind, misalign);
    const auto run = [&](const Implementation& by) {
      Buffer y(n * size_of(type), misalign * size_of(type));
      by.decode(type, in.packed[0], n, {block, Scale::kRms}, y.data());
      return y;
    };
    ASSERT_EQ(run(implementation), run(reference)) << onebit::name_of(type) << " " << name_of(kind)
                                                   << " n=" << n << " block=" << block << " +" << misalign;
  }

  void whole_mode_is_the_same(DataType type, Kind kind, std::size_t n, Scale scale, std::size_t misalign) {
    const Buffer x = numbers(type, kind, n, n + 1, misalign * size_of(type));
    const Buffer e = numbers(DataType::kFloat32, Kind::kRandom, n, n + 2, misalign * 4);
    const auto sums = [&](const Implementation& by) {
      Buffer out(4 * sub_block_count(n), misalign * 4);
      by.sums(type, x.data(), n, scale, e.as<float>(), out.as<float>());
      return out;
    };
    const Buffer expected = sums(reference);
    ASSERT_EQ(sums(implementation), expected) << onebit::name_of(type) << " " << name_of(kind) << " n=" << n;
    const float s = whole_scale({expected.as<float>(), sub_block_count(n)}, n, scale);
    const auto quantize = [&](const Implementation& by) {
      std::pair<Buffer, Buffer> out{e, Buffer(bit_bytes(n), misalign)};
      by.quantize(type, x.data(), n, s, out.first.as<float>(), out.second.as<std::uint8_t>());
      return out;
    };
    ASSERT_EQ(quantize(implementation), quantize(reference)) << onebit::name_of(type) << " n=" << n;
  }
};

INSTANTIATE_TEST_SUITE_P(Codec, EveryImplementation, testing::ValuesIn(implementations_under_test()),
                         NameOfImplementation());

TEST_P(EveryImplementation, EncodesEveryKindTypeScaleAndBlockSizeAsTheReference) {
  for (DataType type : kTypes) {
    for (Kind kind : kKinds) {
      for (Scale scale : kScales) {
        for (std::uint32_t block : {256u, 512u, 2048u, 65536u}) {
          encode_is_the_same(type, kind, 2 * 2048 + 77, {block, scale}, 0);
        }
      }
    }
    encode_is_the_same(type, Kind::kMixed, 2 * 65536 + 300, {65536, Scale::kRms}, 1);
    encode_is_the_same(type, Kind::kMixed, 5 * 8192 + 300, {8192, Scale::kMean}, 1);
  }
}

TEST_P(EveryImplementation, EncodesEveryLengthOfEndAsTheReferenceAtAnyAlignment) {
  for (std::size_t n : counts_of_every_end()) {
    for (DataType type : kTypes) {
      encode_is_the_same(type, Kind::kRandom, n, {256, Scale::kRms}, n % 17);
      encode_is_the_same(type, Kind::kRandom, n, {2048, Scale::kMean}, 0);
    }
  }
}

TEST_P(EveryImplementation, AveragesEveryWorldSizeKindAndBlockSizeAsTheReference) {
  for (std::size_t world : {1u, 2u, 3u, 7u, 8u}) {
    for (Kind kind : kKinds) {
      for (Scale scale : kScales) {
        for (std::uint32_t block : {256u, 2048u, 8192u}) {
          average_is_the_same(world, kind, 2 * 2048 + 77, {block, scale}, world % 4);
        }
      }
    }
  }
  average_is_the_same(3, Kind::kRandom, 2 * 65536 + 777, {65536, Scale::kRms}, 0);
}

TEST_P(EveryImplementation, AveragesEveryLengthOfEndAsTheReferenceAtAnyAlignment) {
  for (std::size_t n : counts_of_every_end()) {
    average_is_the_same(1 + n % 9, Kind::kRandom, n, {256, Scale::kRms}, n % 17);
    average_is_the_same(1 + n % 5, Kind::kRandom, n, {2048, Scale::kMean}, 0);
  }
}

TEST_P(EveryImplementation, AveragesMorePiecesThanOneSweepHoldsAsTheReference) {
  for (std::size_t world : {63u, 64u, 65u, 128u, 131u}) {
    average_is_the_same(world, Kind::kRandom, 2048 + 333, {2048, Scale::kRms}, 1);
    accumulate_is_the_same(world, Kind::kRandom, 2048 + 333, Scale::kRms, 1);
  }
}

TEST_P(EveryImplementation, DecodesEveryKindTypeBlockSizeAndAlignmentAsTheReference) {
  for (DataType type : kTypes) {
    for (std::size_t misalign = 0; misalign < 65; ++misalign) {
      for (std::uint32_t block : {256u, 2048u, kWhole}) {
        decode_is_the_same(type, Kind::kMixed, 5000, block, misalign);
      }
    }
    for (Kind kind : kKinds) decode_is_the_same(type, kind, 20 * 256 + 13, 256, 3);
  }
}

TEST_P(EveryImplementation, DecodesEveryLengthOfEndAsTheReference) {
  for (std::size_t n : counts_of_every_end()) {
    for (DataType type : kTypes) decode_is_the_same(type, Kind::kRandom, n, 256, n % 19);
  }
}

TEST_P(EveryImplementation, DecodesOutputsThatGoPastTheCachesAsTheReference) {
  for (DataType type : kTypes) {
    for (std::size_t misalign : {0u, 1u, 7u, 31u}) {
      for (std::uint32_t block : {256u, 2048u, 65536u, kWhole}) {
        decode_is_the_same(type, Kind::kMixed, (std::size_t{1} << 19) + 4321, block, misalign);
      }
    }
  }
}

TEST_P(EveryImplementation, SumsAndQuantizesEveryKindTypeAndScaleAsTheReference) {
  for (DataType type : kTypes) {
    for (Kind kind : kKinds) {
      for (Scale scale : kScales) whole_mode_is_the_same(type, kind, 3 * 2048 + 77, scale, 0);
    }
  }
}

TEST_P(EveryImplementation, SumsAndQuantizesEveryLengthOfEndAsTheReferenceAtAnyAlignment) {
  for (std::size_t n : counts_of_every_end()) {
    for (DataType type : kTypes) whole_mode_is_the_same(type, Kind::kRandom, n, kScales[n % 2], n % 17);
  }
}

TEST_P(EveryImplementation, AccumulatesEveryWorldSizeKindAndLengthOfEndAsTheReference) {
  for (std::size_t world : {1u, 2u, 3u, 7u, 8u}) {
    for (Kind kind : kKinds) {
      for (Scale scale : kScales) accumulate_is_the_same(world, kind, 3 * 2048 + 77, scale, world % 4);
    }
  }
  for (std::size_t n : counts_of_every_end())
    accumulate_is_the_same(3, Kind::kRandom, n, Scale::kRms, n % 17);
}

TEST_P(EveryImplementation, DoesNothingToNoElements) {
  encode_is_the_same(DataType::kFloat32, Kind::kRandom, 0, {}, 0);
  average_is_the_same(2, Kind::kRandom, 0, {}, 0);
  accumulate_is_the_same(2, Kind::kRandom, 0, Scale::kRms, 0);
  decode_is_the_same(DataType::kFloat32, Kind::kRandom, 0, 2048, 0);
  decode_is_the_same(DataType::kFloat16, Kind::kRandom, 0, kWhole, 0);
  whole_mode_is_the_same(DataType::kFloat32, Kind::kRandom, 0, Scale::kRms, 0);
}

}  // namespace
}  // namespace onebit::codec::test
