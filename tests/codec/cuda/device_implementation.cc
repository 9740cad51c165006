// The suites' implementation: the CUDA kernels behind the CPU's interface. Each call copies its arrays to the
// device, x at the same misalignment, launches, and copies the results back.
#include "../test_data.h"
#include "codec/cuda/kernels.h"
#include "device_array.h"

namespace onebit::codec::test {
namespace {

std::size_t misalignment(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16;
}

constexpr auto kFloat32 = cuda::ErrorType::kFloat32;

void encode(DataType type, const void* x, std::size_t n, Parameters parameters, float* error,
            std::byte* scales, std::uint8_t* bits) noexcept {
  const std::size_t scale_bytes = 4 * scale_count(n, parameters.block);
  const DeviceArray device_x(x, n * size_of(type), misalignment(x)), device_error(error, 4 * n),
      device_scales(scale_bytes), device_bits(cuda::packed_bit_bytes(n));
  const cuda::EncodePiece piece = {device_x.data(), device_error.data(), device_bits.as<std::uint32_t>(),
                                   device_scales.as<float>(), n};
  check(cuda::encode(type, kFloat32, {&piece, 1}, parameters, nullptr), "encode");
  device_error.copy_to(error, 4 * n);
  device_scales.copy_to(scales, scale_bytes);
  device_bits.copy_to(bits, bit_bytes(n));
}

/// The pieces of all ranks, a stride apart: bits, then scales.
class DevicePieces {
 public:
  DevicePieces(std::span<const Packed> pieces, std::size_t n, std::uint32_t block)
      : bit_room_(cuda::packed_bit_bytes(n)),
        stride_(bit_room_ + (4 * scale_count(n, block) + 15) / 16 * 16),
        array_(stride_ * pieces.size()) {
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      char* const to = array_.as<char>() + r * stride_;
      check(cudaMemcpy(to, pieces[r].bits, bit_bytes(n), cudaMemcpyHostToDevice), "copy bits");
      check(cudaMemcpy(to + bit_room_, pieces[r].scales, 4 * scale_count(n, block), cudaMemcpyHostToDevice),
            "copy scales");
    }
  }
  const std::uint32_t* bits() const { return array_.as<std::uint32_t>(); }
  const float* scales() const { return reinterpret_cast<const float*>(array_.as<char>() + bit_room_); }
  std::size_t stride() const { return stride_; }

 private:
  std::size_t bit_room_, stride_;
  DeviceArray array_;
};

void average(std::span<const Packed> pieces, std::size_t n, float factor, Parameters parameters,
             float* owner_error, std::byte* scales, std::uint8_t* bits) noexcept {
  const std::size_t scale_bytes = 4 * scale_count(n, parameters.block);
  const DevicePieces in(pieces, n, parameters.block);
  const DeviceArray device_error(owner_error, 4 * n), device_scales(scale_bytes),
      device_bits(cuda::packed_bit_bytes(n));
  const cuda::AveragePiece piece = {in.bits(),
                                    in.scales(),
                                    in.stride(),
                                    device_error.data(),
                                    device_bits.as<std::uint32_t>(),
                                    device_scales.as<float>(),
                                    nullptr,
                                    n};
  check(
      cuda::average(kFloat32, {&piece, 1}, static_cast<unsigned>(pieces.size()), factor, parameters, nullptr),
      "average");
  device_error.copy_to(owner_error, 4 * n);
  device_scales.copy_to(scales, scale_bytes);
  device_bits.copy_to(bits, bit_bytes(n));
}

void decode(DataType type, Packed packed, std::size_t n, Parameters parameters, void* y) noexcept {
  const DevicePieces in({&packed, 1}, n, parameters.block);
  const DeviceArray device_y(n * size_of(type), misalignment(y));
  const cuda::DecodePiece piece = {in.bits(), in.scales(), device_y.data(), n};
  check(cuda::decode(type, {&piece, 1}, parameters, nullptr), "decode");
  device_y.copy_to(y, n * size_of(type));
}

void sums(DataType type, const void* x, std::size_t n, Scale scale, const float* error,
          float* sums) noexcept {
  const DeviceArray device_x(x, n * size_of(type), misalignment(x)), device_error(error, 4 * n),
      device_sums(4 * sub_block_count(n));
  const cuda::EncodePiece piece = {device_x.data(), device_error.data(), nullptr, device_sums.as<float>(), n};
  check(cuda::sums(type, kFloat32, {&piece, 1}, scale, nullptr), "sums");
  device_sums.copy_to(sums, 4 * sub_block_count(n));
}

void quantize(DataType type, const void* x, std::size_t n, float scale, float* error,
              std::uint8_t* bits) noexcept {
  const DeviceArray device_x(x, n * size_of(type), misalignment(x)), device_error(error, 4 * n),
      device_scale(&scale, 4), device_bits(cuda::packed_bit_bytes(n));
  const cuda::EncodePiece piece = {device_x.data(), device_error.data(), device_bits.as<std::uint32_t>(),
                                   device_scale.as<float>(), n};
  check(cuda::quantize(type, kFloat32, {&piece, 1}, nullptr), "quantize");
  device_error.copy_to(error, 4 * n);
  device_bits.copy_to(bits, bit_bytes(n));
}

void accumulate(std::span<const Packed> pieces, std::size_t n, float factor, Scale scale,
                const float* owner_error, float* averaged, float* sums) noexcept {
  const DevicePieces in(pieces, n, kWhole);
  const DeviceArray device_error(owner_error, 4 * n), device_averaged(4 * n),
      device_sums(4 * sub_block_count(n));
  const cuda::AveragePiece piece = {in.bits(),
                                    in.scales(),
                                    in.stride(),
                                    device_error.data(),
                                    nullptr,
                                    device_sums.as<float>(),
                                    device_averaged.as<float>(),
                                    n};
  check(cuda::accumulate(kFloat32, {&piece, 1}, static_cast<unsigned>(pieces.size()), factor, scale, nullptr),
        "accumulate");
  device_averaged.copy_to(averaged, 4 * n);
  device_sums.copy_to(sums, 4 * sub_block_count(n));
}

}  // namespace

std::vector<const Implementation*> implementations_under_test() {
  static constexpr Implementation implementation = {.name = "cuda",
                                                    .encode = encode,
                                                    .average = average,
                                                    .decode = decode,
                                                    .sums = sums,
                                                    .quantize = quantize,
                                                    .accumulate = accumulate};
  return {&implementation};
}

}  // namespace onebit::codec::test
