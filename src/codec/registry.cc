// The table of implementations, and what does not belong to a single one: whole_scale, and exact_sum by the
// best.
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/convert.h"
#include "codec/float_environment.h"
#include "codec/kernels.h"
#include "codec/reference.h"

namespace onebit::codec {
namespace {

struct Registry {
  std::vector<Kernels> kernels;
  std::vector<Implementation> implementations;
};

const Registry& registry() noexcept {
  static const Registry value = [] {
    Registry made;
    made.kernels.push_back(reference_kernels());
    const auto simd = simd_kernels();
    made.kernels.insert(made.kernels.end(), simd.begin(), simd.end());
    for (const Kernels& kernels : made.kernels) made.implementations.push_back(kernels.implementation);
    return made;
  }();
  return value;
}

ONEBIT_CODEC_KERNEL float whole_scale_kernel(std::span<const float> sums, std::size_t n,
                                             Scale scale) noexcept {
  if (n == 0) return 0;
  constexpr std::size_t kLanes = 256;
  std::array<double, kLanes> lane{};
  for (std::size_t i = 0; i < sums.size(); ++i) lane[i % kLanes] += static_cast<double>(sums[i]);
  for (std::size_t half = kLanes / 2; half >= 1; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  const double mean = lane[0] / static_cast<double>(n);
  const auto result = static_cast<float>(scale == Scale::kRms ? std::sqrt(mean) : mean);
  return std::isfinite(result) ? result : std::bit_cast<float>(kNanBits);
}

}  // namespace

std::span<const Kernels> all_kernels() noexcept {
  return registry().kernels;
}

std::span<const Implementation> implementations() noexcept {
  return registry().implementations;
}

Result<const Implementation*> find_implementation(std::string_view name) {
  const auto all = implementations();
  if (name == "auto") return &all.back();
  std::string names = "auto";
  for (const Implementation& implementation : all) {
    if (implementation.name == name) return &implementation;
    names.append(", ").append(implementation.name);
  }
  return Status::error(Code::kInvalidArgument,
                       "there is no codec implementation \"{}\" on this processor; it has {}", name, names);
}

float whole_scale(std::span<const float> sums, std::size_t n, Scale scale) noexcept {
  return WithDefaultEnvironment<&whole_scale_kernel>::call(sums, n, scale);
}

void exact_sum(DataType type, ReduceOp op, std::span<const void* const> pieces, std::size_t n,
               void* out) noexcept {
  if (n == 0 || pieces.empty()) return;
  all_kernels().back().exact_sum(type, op, pieces, n, out);
}

}  // namespace onebit::codec
