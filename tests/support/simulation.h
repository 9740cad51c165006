// What all ranks of a 1-bit allreduce together compute, by the scalar reference codec: what every other way
// of running it must give, byte for byte; and inputs for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/types.h"
#include "codec/codec.h"
#include "collective/partition.h"
#include "support/random.h"

namespace onebit::testing {

/// What all ranks together compute, one buffer after the other, with no chunks, no threads, no network.
class Simulation {
 public:
  Simulation(std::size_t ranks, std::size_t count, DataType type, ReduceOp op, codec::Parameters parameters)
      : ranks_(ranks),
        count_(count),
        type_(type),
        parameters_(parameters),
        factor_(op == ReduceOp::kAvg ? 1.0F / static_cast<float>(ranks) : 1.0F),
        plan_(count, ranks, count + 1),
        worker_(ranks, std::vector<float>(count)),
        owner_(count),
        codec_(codec::implementations().front()) {}

  /// inputs: one buffer of count elements a rank. Gives y.
  std::vector<std::byte> call(const std::vector<std::vector<std::byte>>& inputs) {
    const std::size_t element = size_of(type_);
    std::vector<float> worker_scales(ranks_);
    for (std::size_t r = 0; r < ranks_ && whole(); ++r) {
      std::vector<float> sums;
      for (std::size_t p = 0; p < ranks_; ++p) {
        const collective::Range range = plan_.partition(p);
        std::vector<float> part(codec::sub_block_count(range.length));
        codec_.sums(type_, inputs[r].data() + range.begin * element, range.length, parameters_.scale,
                    worker_[r].data() + range.begin, part.data());
        sums.insert(sums.end(), part.begin(), part.end());
      }
      worker_scales[r] = codec::whole_scale(sums, count_, parameters_.scale);
    }
    std::vector<std::byte> y(count_ * element);
    for (std::size_t p = 0; p < ranks_; ++p) {
      const collective::Range range = plan_.partition(p);
      if (range.length == 0) continue;
      const std::size_t scales = codec::scale_count(range.length, parameters_.block) * sizeof(float);
      std::vector<std::vector<std::byte>> piece_scales(ranks_, std::vector<std::byte>(scales));
      std::vector<std::vector<std::uint8_t>> piece_bits(
          ranks_, std::vector<std::uint8_t>(codec::bit_bytes(range.length)));
      std::vector<codec::Packed> pieces;
      for (std::size_t r = 0; r < ranks_; ++r) {
        const std::byte* x = inputs[r].data() + range.begin * element;
        float* error = worker_[r].data() + range.begin;
        if (whole()) {
          std::memcpy(piece_scales[r].data(), &worker_scales[r], sizeof(float));
          codec_.quantize(type_, x, range.length, worker_scales[r], error, piece_bits[r].data());
        } else {
          codec_.encode(type_, x, range.length, parameters_, error, piece_scales[r].data(),
                        piece_bits[r].data());
        }
        pieces.push_back({piece_scales[r].data(), piece_bits[r].data()});
      }
      std::vector<std::byte> result_scales(scales);
      std::vector<std::uint8_t> result_bits(codec::bit_bytes(range.length));
      if (whole()) {
        std::vector<float> averaged(range.length);
        std::vector<float> sums(codec::sub_block_count(range.length));
        codec_.accumulate(pieces, range.length, factor_, parameters_.scale, owner_.data() + range.begin,
                          averaged.data(), sums.data());
        const float scale = codec::whole_scale(sums, range.length, parameters_.scale);
        std::memcpy(result_scales.data(), &scale, sizeof scale);
        codec_.quantize(DataType::kFloat32, averaged.data(), range.length, scale, owner_.data() + range.begin,
                        result_bits.data());
      } else {
        codec_.average(pieces, range.length, factor_, parameters_, owner_.data() + range.begin,
                       result_scales.data(), result_bits.data());
      }
      codec_.decode(type_, {result_scales.data(), result_bits.data()}, range.length, parameters_,
                    y.data() + range.begin * element);
    }
    return y;
  }

 private:
  bool whole() const { return parameters_.block == codec::kWhole; }
  std::size_t ranks_;
  std::size_t count_;
  DataType type_;
  codec::Parameters parameters_;
  float factor_;
  collective::PartitionPlan plan_;
  std::vector<std::vector<float>> worker_;
  std::vector<float> owner_;
  const codec::Implementation& codec_;
};

/// Random numbers of the type, of a magnitude that varies along the buffer.
inline std::vector<std::byte> input(DataType type, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float x = random.unit() * (1.0F + static_cast<float>(i % 5000) / 100.0F);
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    // Any 16 bits with a moderate exponent are a number of a 16-bit type.
    const auto bfloat16 = static_cast<std::uint16_t>(bits >> 16);
    const auto half = static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x2C00U | (bits & 0x17FFU));
    if (type == DataType::kFloat32) std::memcpy(bytes.data() + 4 * i, &x, 4);
    if (type == DataType::kBFloat16) std::memcpy(bytes.data() + 2 * i, &bfloat16, 2);
    if (type == DataType::kFloat16) std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

}  // namespace onebit::testing
