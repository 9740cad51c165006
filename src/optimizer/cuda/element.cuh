// What each pass does to one element: the equations of passes.h, for a CUDA thread.
//
// Invariant: the bits of passes-inl.h for every input but the payload of a NaN: the same operations in the
// same order, each rounded on its own (_rn), so that nothing contracts. No state.
#pragma once

#include "cuda/launch.h"
#include "optimizer/passes.h"

namespace onebit::optimizer::cuda {

/// An element of each array.
struct Element {
  float g = 0, x = 0, m = 0, v = 0, f = 0, w = 0, z = 0, c = 0;
};

/// What an element adds to a block's numbers.
struct Terms {
  float first = 0;
  float second = 0;
  float largest = 0;
};

__device__ __forceinline__ float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ __forceinline__ float sub(float a, float b) {
  return __fsub_rn(a, b);
}
__device__ __forceinline__ float mul(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ __forceinline__ float div(float a, float b) {
  return __fdiv_rn(a, b);
}

// ---- the pieces that passes share ----

__device__ __forceinline__ float next_momentum(const Scalars& s, float m, float a) {
  return add(mul(m, s.beta1), mul(s.rest1, a));
}
__device__ __forceinline__ float next_variance(const Scalars& s, float v, float a) {
  return add(mul(v, s.beta2), mul(mul(s.rest2, a), a));
}
__device__ __forceinline__ float denominator(const Scalars& s, float v) {
  return add(mul(__fsqrt_rn(v), s.root_scale), s.eps);
}
__device__ __forceinline__ float decayed(float p, float decay, float w) {
  return add(p, mul(decay, w));
}
__device__ __forceinline__ float bounded(float value, float bound) {
  return fminf(fmaxf(value, -bound), bound);
}
/// [m'/d]
__device__ __forceinline__ float ratio(const Scalars& s, float m, float d) {
  return bounded(div(m, d), s.bound);
}
/// w - step (p + decay w)
__device__ __forceinline__ float moved(const Scalars& s, float w, float p) {
  return sub(w, mul(s.step, decayed(p, s.weight_decay, w)));
}
/// What is to be known of a gradient.
__device__ __forceinline__ Terms measured(float g) {
  return {mul(g, g), 0, fabsf(g)};
}
/// Of a local step.
__device__ __forceinline__ float local_momentum(const Scalars& s, const Element& e, bool live) {
  return live ? next_momentum(s, e.m, mul(e.g, s.gradient_scale)) : 0.0f;
}

/// Changes the element as `kPass` does; `live`: v > 0, or the pass is not masked.
template <Pass kPass>
__device__ __forceinline__ Terms take(const Scalars& s, Element& e, bool live) {
  Terms terms;
  if constexpr (kPass == Pass::kCheck) {
    terms = measured(e.g);
  } else if constexpr (kPass == Pass::kGather) {
    terms = measured(e.g);
    e.x = mul(e.g, s.gradient_scale);
  } else if constexpr (kPass == Pass::kMomentum) {
    terms = measured(e.g);
    e.x = mul(next_momentum(s, mul(e.m, s.momentum_factor), mul(e.g, s.gradient_scale)), s.exchange_scale);
  } else if constexpr (kPass == Pass::kAdam || kPass == Pass::kLambNorms) {
    const float g = mul(e.x, s.gradient_scale);
    e.m = next_momentum(s, e.m, g);
    e.v = next_variance(s, e.v, g);
    const float m = mul(e.m, s.momentum_factor);
    const float d = denominator(s, e.v);
    if constexpr (kPass == Pass::kAdam) {
      e.w = moved(s, e.w, ratio(s, m, d));
    } else {
      const float u = decayed(div(m, d), s.weight_decay, e.w);
      terms = {mul(e.w, e.w), mul(u, u), 0};
    }
  } else if constexpr (kPass == Pass::kAdamKeepingVariance || kPass == Pass::kApply) {
    const float m = kPass == Pass::kApply ? e.m : next_momentum(s, e.m, e.x);
    e.m = live ? m : 0.0f;
    e.w = moved(s, e.w, ratio(s, mul(e.m, s.momentum_factor), denominator(s, e.v)));
  } else if constexpr (kPass == Pass::kLambFrozen) {
    e.m = live ? e.m : 0.0f;
    const float m = mul(e.m, s.momentum_factor);
    const float r = mul(sub(m, mul(mul(e.x, s.previous_factor), s.beta1)), s.inverse1);
    e.f = next_variance(s, e.f, r);
    const float d = denominator(s, e.v);
    const float p = ratio(s, m, d);
    const float u = decayed(p, s.weight_decay, e.w);
    terms = {mul(p, p), mul(u, u), live ? div(d, add(__fsqrt_rn(e.f), s.eps)) : 0.0f};
  } else if constexpr (kPass == Pass::kLocal) {
    e.m = local_momentum(s, e, live);
    const float p = ratio(s, e.m, denominator(s, e.v));
    e.z = sub(e.z, mul(s.step, decayed(p, s.accumulated_decay, e.w)));
    e.w = moved(s, e.w, p);
  } else if constexpr (kPass == Pass::kSyncPrepare) {
    terms = measured(e.g);
    const float d = denominator(s, e.v);
    const float p = ratio(s, local_momentum(s, e, live), d);
    e.x = mul(sub(e.z, mul(s.step, decayed(p, s.accumulated_decay, e.w))), d);
  } else if constexpr (kPass == Pass::kSyncFinish) {
    const float x = live ? e.x : 0.0f;
    const float move = bounded(div(x, denominator(s, e.v)), mul(s.bound, s.window));
    e.m = -div(x, s.window);
    e.c = add(sub(e.c, mul(mul(s.weight_decay, s.window), e.c)), move);
    e.w = e.c;
    e.z = 0;
  } else if constexpr (kPass == Pass::kSyncFinishSubtracting) {
    const float d = denominator(s, e.v);
    const float p = div(local_momentum(s, e, true), d);
    const float z = sub(e.z, mul(s.step, decayed(p, s.accumulated_decay, e.w)));
    e.m = -div(e.x, s.window);
    e.w = add(sub(moved(s, e.w, p), z), div(e.x, d));
    e.z = 0;
  } else if constexpr (kPass == Pass::kExchangedNorm) {
    terms.first = mul(e.x, e.x);
  } else if constexpr (kPass == Pass::kNorms) {
    const float m = live ? e.m : 0.0f;
    terms = {mul(m, m), mul(e.w, e.w), 0};
  } else if constexpr (kPass == Pass::kVarianceNorm) {
    terms = {e.v, e.v > 0.0f ? 0.0f : 1.0f, 0};
  } else if constexpr (kPass == Pass::kCorrect) {
    e.m = mul(e.m, s.momentum_factor);
    e.v = mul(mul(e.v, s.root_scale), s.root_scale);
  }
  return terms;
}

}  // namespace onebit::optimizer::cuda
