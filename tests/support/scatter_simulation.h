// What all ranks of a 1-bit reduce-scatter together compute, by the scalar reference codec: the first half of
// an allreduce, whose owners keep nothing back.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/types.h"
#include "codec/codec.h"
#include "codec/convert.h"

namespace onebit::testing {

class ScatterSimulation {
 public:
  /// `block`: elements that each rank gets.
  ScatterSimulation(std::size_t ranks, std::size_t block, DataType type, ReduceOp op,
                    codec::Parameters parameters)
      : ranks_(ranks),
        block_(block),
        type_(type),
        parameters_(parameters),
        factor_(op == ReduceOp::kAvg ? 1.0F / static_cast<float>(ranks) : 1.0F),
        worker_(ranks, std::vector<float>(ranks * block)),
        codec_(codec::implementations().front()) {}

  /// inputs: one buffer of ranks * block elements a rank. Gives each rank's block.
  std::vector<std::vector<std::byte>> call(const std::vector<std::vector<std::byte>>& inputs) {
    std::vector<std::vector<float>> sums(ranks_, std::vector<float>(block_));
    for (std::size_t r = 0; r < ranks_; ++r) {
      const float whole_scale = whole() ? scale_of(inputs[r], r) : 0;
      for (std::size_t owner = 0; owner < ranks_; ++owner) {
        const std::byte* const x = inputs[r].data() + owner * block_ * size_of(type_);
        float* const error = worker_[r].data() + owner * block_;
        std::vector<float> scales(codec::scale_count(block_, parameters_.block), whole_scale);
        std::vector<std::uint8_t> bits(codec::bit_bytes(block_));
        if (whole()) {
          codec_.quantize(type_, x, block_, whole_scale, error, bits.data());
        } else {
          codec_.encode(type_, x, block_, parameters_, error, reinterpret_cast<std::byte*>(scales.data()),
                        bits.data());
        }
        for (std::size_t i = 0; i < block_; ++i) {
          const float term = scales[whole() ? 0 : i / parameters_.block] * factor_;
          const float signed_term = (bits[i / 8] >> (i % 8) & 1) != 0 ? term : -term;
          sums[owner][i] = r == 0 ? signed_term : sums[owner][i] + signed_term;
        }
      }
    }
    std::vector<std::vector<std::byte>> results;
    for (const std::vector<float>& sum : sums) results.push_back(converted(sum));
    return results;
  }

 private:
  bool whole() const { return parameters_.block == codec::kWhole; }

  float scale_of(const std::vector<std::byte>& x, std::size_t rank) const {
    std::vector<float> sums;
    for (std::size_t owner = 0; owner < ranks_; ++owner) {
      std::vector<float> part(codec::sub_block_count(block_));
      codec_.sums(type_, x.data() + owner * block_ * size_of(type_), block_, parameters_.scale,
                  worker_[rank].data() + owner * block_, part.data());
      sums.insert(sums.end(), part.begin(), part.end());
    }
    return codec::whole_scale(sums, ranks_ * block_, parameters_.scale);
  }

  std::vector<std::byte> converted(const std::vector<float>& values) const {
    std::vector<std::byte> bytes(values.size() * size_of(type_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float canonical = std::isnan(values[i]) ? std::bit_cast<float>(0x7fc00000U) : values[i];
      const std::uint16_t half = codec::float_to_half(values[i]);
      const std::uint16_t bfloat16 = codec::float_to_bfloat16(values[i]);
      if (type_ == DataType::kFloat32) std::memcpy(bytes.data() + 4 * i, &canonical, 4);
      if (type_ == DataType::kFloat16) std::memcpy(bytes.data() + 2 * i, &half, 2);
      if (type_ == DataType::kBFloat16) std::memcpy(bytes.data() + 2 * i, &bfloat16, 2);
    }
    return bytes;
  }

  std::size_t ranks_;
  std::size_t block_;
  DataType type_;
  codec::Parameters parameters_;
  float factor_;
  std::vector<std::vector<float>> worker_;
  const codec::Implementation& codec_;
};

}  // namespace onebit::testing
