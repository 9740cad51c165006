// The SIMD implementations: google/highway compiles this file once a target, and the table names those that
// the processor at hand can run.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels.cc"
#include "hwy/foreach_target.h"
// The order matters to highway: foreach_target.h first.
#include "hwy/highway.h"

#ifndef ONEBIT_CODEC_KERNELS_CC_ONCE
#define ONEBIT_CODEC_KERNELS_CC_ONCE
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/convert.h"
#include "codec/float_environment.h"
#include "codec/kernels.h"
#include "hwy/cache_control.h"
#endif

// The reference stands for processors without a SIMD target: highway's own scalar one is not compiled.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

#include "codec/vectors-inl.h"
// The others use it.
#include "codec/average-inl.h"
#include "codec/decode-inl.h"
#include "codec/encode-inl.h"
#include "codec/exact_sum-inl.h"

namespace onebit::codec::HWY_NAMESPACE {

constexpr Kernels kernels(std::string_view name) {
  return {.implementation = {.name = name,
                             .encode = WithDefaultEnvironment<&encode>::call,
                             .average = WithDefaultEnvironment<&average>::call,
                             .decode = WithDefaultEnvironment<&decode>::call,
                             .sums = WithDefaultEnvironment<&sums>::call,
                             .quantize = WithDefaultEnvironment<&quantize>::call,
                             .accumulate = WithDefaultEnvironment<&accumulate>::call},
          .exact_sum = WithDefaultEnvironment<&exact_sum_kernel>::call};
}

}  // namespace onebit::codec::HWY_NAMESPACE

#endif

#if HWY_ONCE
namespace onebit::codec {

std::span<const Kernels> simd_kernels() noexcept {
  static const std::vector<Kernels> table = [] {
    [[maybe_unused]] const std::int64_t supported = hwy::SupportedTargets();
    std::vector<Kernels> found;
#if HWY_TARGETS & HWY_SSSE3
    if (supported & HWY_SSSE3) found.push_back(N_SSSE3::kernels("ssse3"));
#endif
#if HWY_TARGETS & HWY_SSE4
    if (supported & HWY_SSE4) found.push_back(N_SSE4::kernels("sse4"));
#endif
#if HWY_TARGETS & HWY_AVX2
    if (supported & HWY_AVX2) found.push_back(N_AVX2::kernels("avx2"));
#endif
#if HWY_TARGETS & HWY_AVX3
    if (supported & HWY_AVX3) found.push_back(N_AVX3::kernels("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX3_DL
    if (supported & HWY_AVX3_DL) found.push_back(N_AVX3_DL::kernels("avx512_dl"));
#endif
#if HWY_TARGETS & HWY_NEON
    if (supported & HWY_NEON) found.push_back(N_NEON::kernels("neon"));
#endif
#if HWY_TARGETS & HWY_SVE
    if (supported & HWY_SVE) found.push_back(N_SVE::kernels("sve"));
#endif
#if HWY_TARGETS & HWY_SVE2
    if (supported & HWY_SVE2) found.push_back(N_SVE2::kernels("sve2"));
#endif
#if HWY_TARGETS & HWY_SVE_256
    if (supported & HWY_SVE_256) found.push_back(N_SVE_256::kernels("sve_256"));
#endif
#if HWY_TARGETS & HWY_SVE2_128
    if (supported & HWY_SVE2_128) found.push_back(N_SVE2_128::kernels("sve2_128"));
#endif
    return found;
  }();
  return table;
}

}  // namespace onebit::codec
#endif  // HWY_ONCE
