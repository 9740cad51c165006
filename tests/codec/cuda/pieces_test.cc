// What a launch of the CUDA kernels does beyond one piece: lists of pieces, the scale of `whole` mode, bf16
// errors, the room after the last bit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "../test_data.h"
#include "codec/cuda/kernels.h"
#include "device_array.h"

namespace onebit::codec::test {
namespace {

constexpr auto kFloat32 = cuda::ErrorType::kFloat32;
constexpr auto kBFloat16 = cuda::ErrorType::kBFloat16;

/// Lengths of many pieces, among them none and odd ones; more than a launch holds.
std::vector<std::size_t> many_lengths() {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 2 * cuda::kMaxPieces + 5; ++i)
    lengths.push_back(i % 7 == 3 ? 0 : 1 + i * 97 % 5000);
  return lengths;
}

struct EncodedPiece {
  Buffer x, error, scales, bits;
  DeviceArray device_x, device_error, device_scales, device_bits;

  EncodedPiece(std::size_t n, std::uint32_t block)
      : x(numbers(DataType::kFloat32, Kind::kRandom, n, n + 1)),
        error(numbers(DataType::kFloat32, Kind::kRandom, n, n + 2)),
        scales(4 * scale_count(n, block)),
        bits(bit_bytes(n)),
        device_x(x.data(), 4 * n),
        device_error(error.data(), 4 * n),
        device_scales(scales.size()),
        device_bits(cuda::packed_bit_bytes(n)) {}
};

TEST(CudaPieces, AListLongerThanALaunchHoldsIsCodedPieceByPiece) {
  const Parameters parameters = {512, Scale::kRms};
  std::vector<std::unique_ptr<EncodedPiece>> all;
  std::vector<cuda::EncodePiece> pieces;
  for (const std::size_t n : many_lengths()) {
    auto& one = *all.emplace_back(std::make_unique<EncodedPiece>(n, parameters.block));
    pieces.push_back({one.device_x.data(), one.device_error.data(), one.device_bits.as<std::uint32_t>(),
                      one.device_scales.as<float>(), n});
  }
  ASSERT_EQ(cuda::encode(DataType::kFloat32, kFloat32, pieces, parameters, nullptr), cudaSuccess);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EncodedPiece& one = *all[i];
    const std::size_t n = pieces[i].elements;
    implementations().front().encode(DataType::kFloat32, one.x.data(), n, parameters, one.error.as<float>(),
                                     one.scales.data(), one.bits.as<std::uint8_t>());
    EXPECT_EQ(one.device_error.bytes(4 * n), one.error) << i;
    EXPECT_EQ(one.device_scales.bytes(one.scales.size()), one.scales) << i;
    EXPECT_EQ(one.device_bits.bytes(one.bits.size()), one.bits) << i;
  }
}

TEST(CudaPieces, AListLongerThanALaunchHoldsIsDecodedPieceByPiece) {
  struct Piece {
    Buffer scales, bits, y;
    DeviceArray device_scales, device_bits, device_y;
    explicit Piece(std::size_t n)
        : scales(numbers(DataType::kFloat32, Kind::kMixed, scale_count(n, 256), n)),
          bits(random_bytes(bit_bytes(n), n)),
          y(2 * n),
          device_scales(scales.data(), scales.size()),
          device_bits(bits.data(), bits.size(), 0, cuda::packed_bit_bytes(n)),
          device_y(2 * n) {}
  };
  std::vector<std::unique_ptr<Piece>> all;
  std::vector<cuda::DecodePiece> pieces;
  for (const std::size_t n : many_lengths()) {
    auto& one = *all.emplace_back(std::make_unique<Piece>(n));
    pieces.push_back(
        {one.device_bits.as<std::uint32_t>(), one.device_scales.as<float>(), one.device_y.data(), n});
  }
  const Parameters parameters = {256, Scale::kRms};
  ASSERT_EQ(cuda::decode(DataType::kBFloat16, pieces, parameters, nullptr), cudaSuccess);
  for (std::size_t i = 0; i < all.size(); ++i) {
    Piece& one = *all[i];
    implementations().front().decode(DataType::kBFloat16, {one.scales.data(), one.bits.as<std::uint8_t>()},
                                     pieces[i].elements, parameters, one.y.data());
    EXPECT_EQ(one.device_y.bytes(one.y.size()), one.y) << i;
  }
}

/// What a reduce-scatter's owner gets, by its definition (docs/format.md, section 5): c in elements of
/// `type`.
Buffer reduced(const std::vector<Buffer>& scales, const std::vector<Buffer>& bits, std::size_t n,
               float factor, std::uint32_t block, DataType type) {
  Buffer y(n * size_of(type));
  for (std::size_t i = 0; i < n; ++i) {
    float c = 0;
    for (std::size_t r = 0; r < scales.size(); ++r) {
      const float t = scales[r].as<float>()[block == kWhole ? 0 : i / block] * factor;
      const bool is_positive = bits[r].as<std::uint8_t>()[i / 8] >> (i % 8) & 1;
      const float term = is_positive ? t : -t;
      c = r == 0 ? term : c + term;
    }
    if (type == DataType::kFloat32) y.as<float>()[i] = std::isnan(c) ? std::bit_cast<float>(0x7fc00000U) : c;
    if (type == DataType::kFloat16) y.as<std::uint16_t>()[i] = float_to_half(c);
    if (type == DataType::kBFloat16) y.as<std::uint16_t>()[i] = float_to_bfloat16(c);
  }
  return y;
}

TEST(CudaReduce, GivesTheSumOfAllRanksPiecesForEveryTypeBlockAndLength) {
  constexpr std::size_t kRanks = 3;
  for (const DataType type : kTypes) {
    for (const std::uint32_t block : {256u, 512u, 1024u, 2048u, 4096u, 65536u, kWhole}) {
      for (const std::size_t n : {std::size_t{1}, std::size_t{255}, std::size_t{2049}, std::size_t{20000}}) {
        const std::size_t scale_bytes = (4 * scale_count(n, block) + 15) / 16 * 16;
        const std::size_t stride = scale_bytes + cuda::packed_bit_bytes(n);
        Buffer messages(kRanks * stride);
        std::vector<Buffer> scales, bits;
        for (std::size_t r = 0; r < kRanks; ++r) {
          // Some blocks are NaN, some so large that fp16 overflows.
          const Kind kind = n == 2049 ? Kind::kNan : n == 255 ? Kind::kHuge : Kind::kRandom;
          scales.push_back(numbers(DataType::kFloat32, kind, scale_count(n, block), n + r));
          bits.push_back(random_bytes(bit_bytes(n), n + r));
          std::memcpy(messages.data() + r * stride, scales[r].data(), scales[r].size());
          std::memcpy(messages.data() + r * stride + scale_bytes, bits[r].data(), bits[r].size());
        }
        for (const std::size_t offset : {std::size_t{0}, size_of(type)}) {
          const DeviceArray device(messages.data(), messages.size());
          const DeviceArray y(n * size_of(type), offset);
          const auto* const first = device.as<std::uint8_t>();
          const cuda::ReducePiece piece = {reinterpret_cast<const std::uint32_t*>(first + scale_bytes),
                                           reinterpret_cast<const float*>(first), stride, y.data(), n};
          ASSERT_EQ(cuda::reduce(type, {&piece, 1}, kRanks, 1.0f / 3, {block, Scale::kRms}, nullptr),
                    cudaSuccess);
          EXPECT_EQ(y.bytes(n * size_of(type)), reduced(scales, bits, n, 1.0f / 3, block, type))
              << onebit::name_of(type) << " block=" << block << " n=" << n << " offset=" << offset;
        }
      }
    }
  }
}

TEST(CudaPieces, TheUnusedBitsAndBytesOfTheLastSixteenAreZero) {
  for (const std::size_t n : {1u, 9u, 31u, 33u, 127u, 129u, 255u, 2049u, 4095u}) {
    for (const std::uint32_t block : {256u, 2048u, 4096u, 65536u}) {
      const std::size_t room = cuda::packed_bit_bytes(n);
      const Buffer x = numbers(DataType::kFloat32, Kind::kRandom, n, n);
      const Buffer ones = Buffer(room);  // no byte of it is 0
      const DeviceArray device_x(x.data(), 4 * n), device_error(x.data(), 4 * n),
          device_bits(ones.data(), room), device_scales(4 * scale_count(n, block));
      const cuda::EncodePiece piece = {device_x.data(), device_error.data(), device_bits.as<std::uint32_t>(),
                                       device_scales.as<float>(), n};
      ASSERT_EQ(cuda::encode(DataType::kFloat32, kFloat32, {&piece, 1}, {block, Scale::kMean}, nullptr),
                cudaSuccess);
      const Buffer bits = device_bits.bytes(room);
      for (std::size_t i = n; i < 8 * room; ++i) {
        ASSERT_EQ(bits.as<std::uint8_t>()[i / 8] >> (i % 8) & 1, 0)
            << "n=" << n << " block=" << block << " bit " << i;
      }
    }
  }
}

TEST(CudaWholeScale, IsTheProcessorsForEveryNumberOfSums) {
  for (const std::size_t count : {0u, 1u, 2u, 255u, 256u, 257u, 1000u}) {
    for (const Kind kind : {Kind::kRandom, Kind::kWideRange, Kind::kHuge, Kind::kNan}) {
      for (const Scale scale : kScales) {
        const Buffer sums = numbers(DataType::kFloat32, kind, count, count + 5);
        for (std::size_t i = 0; i < count; ++i) sums.as<float>()[i] = std::fabs(sums.as<float>()[i]);
        const std::size_t n = count * kSubBlock - count / 2;
        const float expected = whole_scale({sums.as<float>(), count}, n, scale);
        constexpr std::size_t kStride = 48;
        const DeviceArray device_sums(sums.data(), 4 * count), result(300 * kStride);
        ASSERT_EQ(cuda::whole_scale(device_sums.as<float>(), count, n, scale,
                                    {result.as<float>(), 300, kStride}, nullptr),
                  cudaSuccess);
        const Buffer copies = result.bytes(300 * kStride);
        for (std::size_t copy = 0; copy < 300; ++copy) {
          ASSERT_EQ(copies.as<std::uint32_t>()[copy * kStride / 4], std::bit_cast<std::uint32_t>(expected))
              << count << " sums, " << name_of(kind) << ", copy " << copy;
        }
      }
    }
  }
}

/// What a call with errors in bf16 gives, by the reference: the errors are widened before, and rounded after.
class Bf16Errors : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Codec, Bf16Errors, testing::ValuesIn(kTypes),
                         [](const auto& parameter) { return std::string(onebit::name_of(parameter.param)); });

TEST_P(Bf16Errors, AreTheReferencesErrorsRounded) {
  const DataType type = GetParam();
  for (const std::uint32_t block : {256u, 512u, 1024u, 2048u, 4096u, 8192u, 16384u, 65536u}) {
    for (const std::size_t n : {std::size_t{3}, std::size_t{2048}, std::size_t{70001}}) {
      const Parameters parameters = {block, Scale::kRms};
      const Buffer x = numbers(type, Kind::kRandom, n, n + 1);
      const Buffer before = numbers(DataType::kBFloat16, Kind::kRandom, n, n + 2);
      Buffer error(4 * n), rounded(2 * n), scales(4 * scale_count(n, block)), bits(bit_bytes(n));
      for (std::size_t i = 0; i < n; ++i)
        error.as<float>()[i] = bfloat16_to_float(before.as<std::uint16_t>()[i]);
      implementations().front().encode(type, x.data(), n, parameters, error.as<float>(), scales.data(),
                                       bits.as<std::uint8_t>());
      for (std::size_t i = 0; i < n; ++i)
        rounded.as<std::uint16_t>()[i] = float_to_bfloat16(error.as<float>()[i]);

      const DeviceArray device_x(x.data(), x.size()), device_error(before.data(), 2 * n),
          device_scales(scales.size()), device_bits(cuda::packed_bit_bytes(n));
      const cuda::EncodePiece piece = {device_x.data(), device_error.data(), device_bits.as<std::uint32_t>(),
                                       device_scales.as<float>(), n};
      ASSERT_EQ(cuda::encode(type, kBFloat16, {&piece, 1}, parameters, nullptr), cudaSuccess);
      EXPECT_EQ(device_error.bytes(2 * n), rounded) << "n=" << n << " block=" << block;
      EXPECT_EQ(device_scales.bytes(scales.size()), scales) << "n=" << n << " block=" << block;
      EXPECT_EQ(device_bits.bytes(bits.size()), bits) << "n=" << n << " block=" << block;
    }
  }
}

TEST(CudaArguments, ATypeThatIsNotCompressedIsRefused) {
  const cuda::EncodePiece piece = {nullptr, nullptr, nullptr, nullptr, 1};
  EXPECT_EQ(cuda::encode(DataType::kInt32, kFloat32, {&piece, 1}, {}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace onebit::codec::test
