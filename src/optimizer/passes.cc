// The implementations: google/highway compiles this file once a target, and the table names those that the
// processor at hand can run.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/passes.cc"
#include "hwy/foreach_target.h"
// The order matters to highway: foreach_target.h first.
#include "hwy/highway.h"

#ifndef ONEBIT_OPTIMIZER_PASSES_CC_ONCE
#define ONEBIT_OPTIMIZER_PASSES_CC_ONCE
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "codec/codec.h"
#include "codec/convert.h"
#include "codec/float_environment.h"
#include "optimizer/passes.h"
#endif

#include "codec/vectors-inl.h"
// It brings the narrow types.
#include "optimizer/passes-inl.h"

namespace onebit::optimizer::HWY_NAMESPACE {

template <Partial (*kKernel)(const Scalars&, const Arrays&, std::size_t) noexcept>
constexpr Kernel kCall = codec::WithDefaultEnvironment<kKernel>::call;

constexpr Passes make_passes(std::string_view name) {
  Passes made{
      name, {}, codec::WithDefaultEnvironment<&widen>::call, codec::WithDefaultEnvironment<&narrow>::call};
  const auto set_both = [&](Pass pass, Kernel plain, Kernel masked) {
    made.kernels[static_cast<std::size_t>(pass)] = {plain, masked};
  };
  const auto set_one = [&](Pass pass, Kernel kernel) { set_both(pass, kernel, kernel); };
  set_one(Pass::kCheck, kCall<&check>);
  set_one(Pass::kGather, kCall<&gather>);
  set_one(Pass::kMomentum, kCall<&momentum>);
  set_one(Pass::kAdam, kCall<&adam>);
  set_both(Pass::kAdamKeepingVariance, kCall<&adam_keeping_variance<false>>,
           kCall<&adam_keeping_variance<true>>);
  set_one(Pass::kLambNorms, kCall<&lamb_norms>);
  set_both(Pass::kApply, kCall<&apply<false>>, kCall<&apply<true>>);
  set_both(Pass::kLambFrozen, kCall<&lamb_frozen<false>>, kCall<&lamb_frozen<true>>);
  set_both(Pass::kLocal, kCall<&local<false>>, kCall<&local<true>>);
  set_both(Pass::kSyncPrepare, kCall<&sync_prepare<false>>, kCall<&sync_prepare<true>>);
  set_both(Pass::kSyncFinish, kCall<&sync_finish<false>>, kCall<&sync_finish<true>>);
  set_one(Pass::kSyncFinishSubtracting, kCall<&sync_finish_subtracting>);
  set_one(Pass::kExchangedNorm, kCall<&exchanged_norm>);
  set_both(Pass::kNorms, kCall<&norms<false>>, kCall<&norms<true>>);
  set_one(Pass::kVarianceNorm, kCall<&variance_norm>);
  set_one(Pass::kCorrect, kCall<&correct>);
  return made;
}

}  // namespace onebit::optimizer::HWY_NAMESPACE

#if HWY_ONCE
namespace onebit::optimizer {

std::span<const Passes> passes() noexcept {
  static const std::vector<Passes> table = [] {
    [[maybe_unused]] const std::int64_t supported = hwy::SupportedTargets();
    std::vector<Passes> found;
#if HWY_TARGETS & HWY_EMU128
    found.push_back(N_EMU128::make_passes("scalar"));
#endif
#if HWY_TARGETS & HWY_SSSE3
    if (supported & HWY_SSSE3) found.push_back(N_SSSE3::make_passes("ssse3"));
#endif
#if HWY_TARGETS & HWY_SSE4
    if (supported & HWY_SSE4) found.push_back(N_SSE4::make_passes("sse4"));
#endif
#if HWY_TARGETS & HWY_AVX2
    if (supported & HWY_AVX2) found.push_back(N_AVX2::make_passes("avx2"));
#endif
#if HWY_TARGETS & HWY_AVX3
    if (supported & HWY_AVX3) found.push_back(N_AVX3::make_passes("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX3_DL
    if (supported & HWY_AVX3_DL) found.push_back(N_AVX3_DL::make_passes("avx512_dl"));
#endif
#if HWY_TARGETS & HWY_NEON
    if (supported & HWY_NEON) found.push_back(N_NEON::make_passes("neon"));
#endif
#if HWY_TARGETS & HWY_SVE
    if (supported & HWY_SVE) found.push_back(N_SVE::make_passes("sve"));
#endif
#if HWY_TARGETS & HWY_SVE2
    if (supported & HWY_SVE2) found.push_back(N_SVE2::make_passes("sve2"));
#endif
#if HWY_TARGETS & HWY_SVE_256
    if (supported & HWY_SVE_256) found.push_back(N_SVE_256::make_passes("sve_256"));
#endif
#if HWY_TARGETS & HWY_SVE2_128
    if (supported & HWY_SVE2_128) found.push_back(N_SVE2_128::make_passes("sve2_128"));
#endif
    return found;
  }();
  return table;
}

const Passes& find_passes(std::string_view name) noexcept {
  const auto all = passes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Passes& each) { return each.name == name; });
  return found != all.end() ? *found : all.back();
}

}  // namespace onebit::optimizer
#endif  // HWY_ONCE
