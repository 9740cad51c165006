#include "codec/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "codec/convert.h"
#include "codec/float_environment.h"

namespace onebit::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "scales are little-endian on the wire");

constexpr std::size_t kLanes = 256;
const float kNan = std::bit_cast<float>(kNanBits);

float load(DataType type, const void* x, std::size_t i) noexcept {
  if (type == DataType::kFloat32) return static_cast<const float*>(x)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(x)[i];
  return type == DataType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void store(DataType type, void* y, std::size_t i, float value) noexcept {
  if (type == DataType::kFloat32) {
    static_cast<std::uint32_t*>(y)[i] = std::isnan(value) ? kNanBits : std::bit_cast<std::uint32_t>(value);
  } else {
    static_cast<std::uint16_t*>(y)[i] =
        type == DataType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
  }
}

float load_scale(const std::byte* scales, std::size_t block) noexcept {
  float scale;
  std::memcpy(&scale, scales + 4 * block, 4);
  return scale;
}

void store_scale(std::byte* scales, std::size_t block, float scale) noexcept {
  std::memcpy(scales + 4 * block, &scale, 4);
}

bool bit_at(const std::uint8_t* bits, std::size_t i) noexcept {
  return (bits[i / 8] >> (i % 8) & 1) != 0;
}

void set_bit(std::uint8_t* bits, std::size_t i) noexcept {
  bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1u << (i % 8));
}

/// The sum of a block: element i goes to lane i % 256 in ascending order, then the lanes are folded in
/// halves.
template <typename Z>
float block_sum(Scale rule, std::size_t n, Z z) noexcept {
  std::array<float, kLanes> lane{};
  for (std::size_t i = 0; i < n; ++i) {
    lane[i % kLanes] += rule == Scale::kRms ? z(i) * z(i) : std::fabs(z(i));
  }
  for (std::size_t half = kLanes / 2; half >= 1; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

float block_scale(Scale rule, float sum, std::size_t n) noexcept {
  if (!std::isfinite(sum)) return kNan;
  const float mean = sum / static_cast<float>(n);
  return rule == Scale::kRms ? std::sqrt(mean) : mean;
}

/// Codes elements 0..n of z, of which the first is element `first` of the bits, which are all 0 before.
template <typename Z>
void quantize_block(float scale, std::size_t first, std::size_t n, Z z, float* error,
                    std::uint8_t* bits) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(scale)) {
      set_bit(bits, first + i);
      continue;
    }
    const float value = z(i);
    const bool positive = !(value < 0);
    if (positive) set_bit(bits, first + i);
    error[i] = value - (positive ? scale : -scale);
  }
}

template <typename Z>
void encode_blocks(std::size_t n, Parameters parameters, Z z, float* error, std::byte* scales,
                   std::uint8_t* bits) noexcept {
  assert(parameters.block != kWhole);
  std::fill_n(bits, bit_bytes(n), std::uint8_t{0});
  for (std::size_t first = 0, block = 0; first < n; first += parameters.block, ++block) {
    const std::size_t count = std::min<std::size_t>(parameters.block, n - first);
    const auto block_z = [&](std::size_t i) { return z(first + i); };
    const float scale = block_scale(parameters.scale, block_sum(parameters.scale, count, block_z), count);
    store_scale(scales, block, scale);
    quantize_block(scale, first, count, block_z, error + first, bits);
  }
}

/// The sum over the pieces, in their order, of +-(scale * factor) at element i of block `block`.
float averaged_at(std::span<const Packed> pieces, float factor, std::size_t block, std::size_t i) noexcept {
  float sum = 0;
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    const float scale = load_scale(pieces[r].scales, block) * factor;
    const float term = bit_at(pieces[r].bits, i) ? scale : -scale;
    sum = r == 0 ? term : sum + term;
  }
  return sum;
}

ONEBIT_CODEC_KERNEL void encode(DataType type, const void* x, std::size_t n, Parameters parameters,
                                float* error, std::byte* scales, std::uint8_t* bits) noexcept {
  const auto z = [=](std::size_t i) { return load(type, x, i) + error[i]; };
  encode_blocks(n, parameters, z, error, scales, bits);
}

ONEBIT_CODEC_KERNEL void average(std::span<const Packed> pieces, std::size_t n, float factor,
                                 Parameters parameters, float* owner_error, std::byte* scales,
                                 std::uint8_t* bits) noexcept {
  const auto z = [=](std::size_t i) {
    return averaged_at(pieces, factor, i / parameters.block, i) + owner_error[i];
  };
  encode_blocks(n, parameters, z, owner_error, scales, bits);
}

ONEBIT_CODEC_KERNEL void decode(DataType type, Packed piece, std::size_t n, Parameters parameters,
                                void* y) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const float scale = load_scale(piece.scales, parameters.block == kWhole ? 0 : i / parameters.block);
    store(type, y, i, bit_at(piece.bits, i) ? scale : -scale);
  }
}

template <typename Z>
void sub_block_sums(std::size_t n, Scale scale, Z z, float* sums) noexcept {
  for (std::size_t first = 0; first < n; first += kSubBlock) {
    const std::size_t count = std::min<std::size_t>(kSubBlock, n - first);
    const float sum = block_sum(scale, count, [&](std::size_t i) { return z(first + i); });
    sums[first / kSubBlock] = std::isnan(sum) ? kNan : sum;
  }
}

ONEBIT_CODEC_KERNEL void sums(DataType type, const void* x, std::size_t n, Scale scale, const float* error,
                              float* sums) noexcept {
  sub_block_sums(
      n, scale, [=](std::size_t i) { return load(type, x, i) + error[i]; }, sums);
}

ONEBIT_CODEC_KERNEL void quantize(DataType type, const void* x, std::size_t n, float scale, float* error,
                                  std::uint8_t* bits) noexcept {
  std::fill_n(bits, bit_bytes(n), std::uint8_t{0});
  const auto z = [=](std::size_t i) { return load(type, x, i) + error[i]; };
  quantize_block(scale, 0, n, z, error, bits);
}

ONEBIT_CODEC_KERNEL void accumulate(std::span<const Packed> pieces, std::size_t n, float factor, Scale scale,
                                    const float* owner_error, float* averaged, float* sums) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    store(DataType::kFloat32, averaged, i, averaged_at(pieces, factor, 0, i));
  }
  sub_block_sums(
      n, scale, [=](std::size_t i) { return averaged[i] + owner_error[i]; }, sums);
}

template <typename T>
void exact_sum_of(std::span<const void* const> pieces, std::size_t n, T factor, void* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    T sum = static_cast<const T*>(pieces[0])[i];
    for (const void* piece : pieces.subspan(1)) sum += static_cast<const T*>(piece)[i];
    static_cast<T*>(out)[i] = sum * factor;
  }
}

void exact_sum_of_narrow(DataType type, std::span<const void* const> pieces, std::size_t n, float factor,
                         void* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    float sum = load(type, pieces[0], i);
    for (const void* piece : pieces.subspan(1)) sum += load(type, piece, i);
    store(type, out, i, sum * factor);
  }
}

ONEBIT_CODEC_KERNEL void exact_sum_reference(DataType type, ReduceOp op, std::span<const void* const> pieces,
                                             std::size_t n, void* out) noexcept {
  const bool average = op == ReduceOp::kAvg;
  const double factor64 = average ? 1.0 / static_cast<double>(pieces.size()) : 1.0;
  const float factor32 = average ? 1.0f / static_cast<float>(pieces.size()) : 1.0f;
  switch (type) {
    case DataType::kInt32:
      return exact_sum_of<std::uint32_t>(pieces, n, 1, out);
    case DataType::kInt64:
      return exact_sum_of<std::uint64_t>(pieces, n, 1, out);
    case DataType::kFloat32:
      return exact_sum_of<float>(pieces, n, factor32, out);
    case DataType::kFloat64:
      return exact_sum_of<double>(pieces, n, factor64, out);
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return exact_sum_of_narrow(type, pieces, n, factor32, out);
  }
}

}  // namespace

const Kernels& reference_kernels() noexcept {
  static constexpr Kernels kernels = {
      .implementation = {.name = "scalar",
                         .encode = WithDefaultEnvironment<&encode>::call,
                         .average = WithDefaultEnvironment<&average>::call,
                         .decode = WithDefaultEnvironment<&decode>::call,
                         .sums = WithDefaultEnvironment<&sums>::call,
                         .quantize = WithDefaultEnvironment<&quantize>::call,
                         .accumulate = WithDefaultEnvironment<&accumulate>::call},
      .exact_sum = WithDefaultEnvironment<&exact_sum_reference>::call,
  };
  return kernels;
}

}  // namespace onebit::codec
