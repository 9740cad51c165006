// The kernels of passes.h for a SIMD target.
//
// A kernel is a body for one vector; `run` drives it over a block and takes the end, shorter than a vector,
// through padded copies. A padded element adds +0 to sums and nothing to a maximum: all its arrays are 0, but
// f is so large that its ratio is 0.
//
// Included by passes.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::optimizer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using V = hn::Vec<F32>;

HWY_INLINE V set(float value) {
  return hn::Set(F32(), value);
}
HWY_INLINE V load(const float* array, std::size_t i) {
  return hn::LoadU(F32(), array + i);
}
HWY_INLINE void store(V value, float* array, std::size_t i) {
  hn::StoreU(value, F32(), array + i);
}

/// The three numbers of a block, as lanes.
struct Lanes {
  HWY_ALIGN float first[kLanes] = {};
  HWY_ALIGN float second[kLanes] = {};
  HWY_ALIGN std::int32_t largest[kLanes] = {};

  static HWY_INLINE void add(float* lanes, std::size_t i, V terms) {
    float* const at = lanes + i % kLanes;
    hn::Store(hn::Add(hn::Load(F32(), at), terms), F32(), at);
  }
  HWY_INLINE void add_first(std::size_t i, V terms) { add(first, i, terms); }
  HWY_INLINE void add_second(std::size_t i, V terms) { add(second, i, terms); }
  /// Terms that are not negative. Their bits are ordered as they are, NaN above all.
  HWY_INLINE void raise(std::size_t i, V terms) {
    std::int32_t* const at = largest + i % kLanes;
    hn::Store(hn::Max(hn::Load(I32(), at), hn::BitCast(I32(), terms)), I32(), at);
  }
  /// What is to be known of gradients: their norm and the largest.
  HWY_INLINE void measure(std::size_t i, V g) {
    add_first(i, hn::Mul(g, g));
    raise(i, hn::Abs(g));
  }
  static float fold(float* lanes) {
    for (std::size_t half = kLanes / 2; half >= 1; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
  }
  Partial partial() {
    return {fold(first), fold(second), std::bit_cast<float>(*std::max_element(largest, largest + kLanes))};
  }
};

/// A whole vector of each array, for the end of a block.
struct Padded {
  static constexpr std::size_t kMost = HWY_MAX_BYTES / sizeof(float);
  HWY_ALIGN float memory[8][kMost] = {};

  template <class T>
  static void copy_in(T*& array, std::size_t i, std::size_t n, float* to) {
    if (array == nullptr) return;
    std::memcpy(to, array + i, n * sizeof(float));
    array = to;
  }
  Arrays in(Arrays arrays, std::size_t i, std::size_t n) {
    std::fill(memory[4], memory[4] + kMost, 0x1p100F);
    copy_in(arrays.g, i, n, memory[0]);
    copy_in(arrays.x, i, n, memory[1]);
    copy_in(arrays.m, i, n, memory[2]);
    copy_in(arrays.v, i, n, memory[3]);
    copy_in(arrays.f, i, n, memory[4]);
    copy_in(arrays.w, i, n, memory[5]);
    copy_in(arrays.z, i, n, memory[6]);
    copy_in(arrays.c, i, n, memory[7]);
    return arrays;
  }
  void out(const Arrays& arrays, std::size_t i, std::size_t n) {
    float* const targets[] = {arrays.x, arrays.m, arrays.v, arrays.f, arrays.w, arrays.z, arrays.c};
    for (std::size_t k = 0; k < std::size(targets); ++k) {
      if (targets[k] != nullptr) std::memcpy(targets[k] + i, memory[k + 1], n * sizeof(float));
    }
  }
};

template <class Body>
HWY_INLINE Partial run(const Arrays& arrays, std::size_t n, const Body& body) {
  const std::size_t step = hn::Lanes(F32());
  Lanes lanes;
  std::size_t i = 0;
  for (; i + step <= n; i += step) body(arrays, i, i, lanes);
  if (i < n) {
    Padded padded;
    const Arrays copies = padded.in(arrays, i, n - i);
    body(copies, 0, i, lanes);
    padded.out(arrays, i, n - i);
  }
  return lanes.partial();
}

// ---- the pieces that kernels share ----

/// beta1 m + rest1 a
HWY_INLINE V next_momentum(const Scalars& s, V m, V a) {
  return hn::Add(hn::Mul(m, set(s.beta1)), hn::Mul(set(s.rest1), a));
}
/// beta2 v + rest2 a a
HWY_INLINE V next_variance(const Scalars& s, V v, V a) {
  return hn::Add(hn::Mul(v, set(s.beta2)), hn::Mul(hn::Mul(set(s.rest2), a), a));
}
HWY_INLINE V denominator(const Scalars& s, V v) {
  return hn::Add(hn::Mul(hn::Sqrt(v), set(s.root_scale)), set(s.eps));
}
/// p + decay w
HWY_INLINE V decayed(V p, float decay, V w) {
  return hn::Add(p, hn::Mul(set(decay), w));
}
/// `value`, 0 where masked and v = 0.
template <bool kMasked>
HWY_INLINE V live(V value, V v) {
  if constexpr (kMasked) return hn::IfThenElseZero(hn::Gt(v, hn::Zero(F32())), value);
  return value;
}
HWY_INLINE V bounded(V value, float bound) {
  return hn::Min(hn::Max(value, set(-bound)), set(bound));
}
/// [m'/d]
HWY_INLINE V ratio(const Scalars& s, V m, V d) {
  return bounded(hn::Div(m, d), s.bound);
}
HWY_INLINE V gradient(const Scalars& s, const float* g, std::size_t i) {
  return hn::Mul(load(g, i), set(s.gradient_scale));
}

// ---- kernels ----

ONEBIT_CODEC_KERNEL Partial check(const Scalars&, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    lanes.measure(i, load(a.g, at));
  });
}

ONEBIT_CODEC_KERNEL Partial gather(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    lanes.measure(i, load(a.g, at));
    store(gradient(s, a.g, at), a.x, at);
  });
}

ONEBIT_CODEC_KERNEL Partial momentum(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    lanes.measure(i, load(a.g, at));
    const V m = hn::Mul(load(a.m, at), set(s.momentum_factor));
    const V next = next_momentum(s, m, gradient(s, a.g, at));
    store(hn::Mul(next, set(s.exchange_scale)), a.x, at);
  });
}

ONEBIT_CODEC_KERNEL Partial adam(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V g = gradient(s, a.x, at);
    const V m = next_momentum(s, load(a.m, at), g);
    const V v = next_variance(s, load(a.v, at), g);
    store(m, a.m, at);
    store(v, a.v, at);
    const V w = load(a.w, at);
    const V p = ratio(s, hn::Mul(m, set(s.momentum_factor)), denominator(s, v));
    store(hn::Sub(w, hn::Mul(set(s.step), decayed(p, s.weight_decay, w))), a.w, at);
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial adam_keeping_variance(const Scalars& s, const Arrays& arrays,
                                                  std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V v = load(a.v, at);
    const V m = live<kMasked>(next_momentum(s, load(a.m, at), load(a.x, at)), v);
    store(m, a.m, at);
    const V w = load(a.w, at);
    const V p = ratio(s, hn::Mul(m, set(s.momentum_factor)), denominator(s, v));
    store(hn::Sub(w, hn::Mul(set(s.step), decayed(p, s.weight_decay, w))), a.w, at);
  });
}

ONEBIT_CODEC_KERNEL Partial lamb_norms(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    const V g = gradient(s, a.x, at);
    const V m = next_momentum(s, load(a.m, at), g);
    const V v = next_variance(s, load(a.v, at), g);
    store(m, a.m, at);
    store(v, a.v, at);
    const V w = load(a.w, at);
    const V p = hn::Div(hn::Mul(m, set(s.momentum_factor)), denominator(s, v));
    const V u = decayed(p, s.weight_decay, w);
    lanes.add_first(i, hn::Mul(w, w));
    lanes.add_second(i, hn::Mul(u, u));
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial apply(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V v = load(a.v, at);
    const V m = live<kMasked>(load(a.m, at), v);
    if constexpr (kMasked) store(m, a.m, at);
    const V w = load(a.w, at);
    const V p = ratio(s, hn::Mul(m, set(s.momentum_factor)), denominator(s, v));
    store(hn::Sub(w, hn::Mul(set(s.step), decayed(p, s.weight_decay, w))), a.w, at);
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial lamb_frozen(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    const V v = load(a.v, at);
    const V stored = live<kMasked>(load(a.m, at), v);
    if constexpr (kMasked) store(stored, a.m, at);
    const V m = hn::Mul(stored, set(s.momentum_factor));
    const V before = hn::Mul(load(a.x, at), set(s.previous_factor));
    const V r = hn::Mul(hn::Sub(m, hn::Mul(before, set(s.beta1))), set(s.inverse1));
    const V f = next_variance(s, load(a.f, at), r);
    store(f, a.f, at);
    const V d = denominator(s, v);
    const V p = ratio(s, m, d);
    const V u = decayed(p, s.weight_decay, load(a.w, at));
    lanes.add_first(i, hn::Mul(p, p));
    lanes.add_second(i, hn::Mul(u, u));
    lanes.raise(i, live<kMasked>(hn::Div(d, hn::Add(hn::Sqrt(f), set(s.eps))), v));
  });
}

/// The move of a local step: m and u = m/d.
template <bool kMasked>
HWY_INLINE V local_momentum(const Scalars& s, const Arrays& a, std::size_t at, V v) {
  return live<kMasked>(next_momentum(s, load(a.m, at), gradient(s, a.g, at)), v);
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial local(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V v = load(a.v, at);
    const V m = local_momentum<kMasked>(s, a, at, v);
    store(m, a.m, at);
    const V p = ratio(s, m, denominator(s, v));
    const V w = load(a.w, at);
    const V step = set(s.step);
    store(hn::Sub(w, hn::Mul(step, decayed(p, s.weight_decay, w))), a.w, at);
    store(hn::Sub(load(a.z, at), hn::Mul(step, decayed(p, s.accumulated_decay, w))), a.z, at);
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial sync_prepare(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    lanes.measure(i, load(a.g, at));
    const V v = load(a.v, at);
    const V d = denominator(s, v);
    const V p = ratio(s, local_momentum<kMasked>(s, a, at, v), d);
    const V move = hn::Mul(set(s.step), decayed(p, s.accumulated_decay, load(a.w, at)));
    store(hn::Mul(hn::Sub(load(a.z, at), move), d), a.x, at);
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial sync_finish(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  const float decay = s.weight_decay * s.window;
  const float bound = s.bound * s.window;
  return run(arrays, n, [s, decay, bound](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V v = load(a.v, at);
    const V x = live<kMasked>(load(a.x, at), v);
    store(hn::Neg(hn::Div(x, set(s.window))), a.m, at);
    const V c = load(a.c, at);
    const V next = hn::Add(hn::Sub(c, hn::Mul(set(decay), c)), bounded(hn::Div(x, denominator(s, v)), bound));
    store(next, a.c, at);
    store(next, a.w, at);
    store(hn::Zero(F32()), a.z, at);
  });
}

ONEBIT_CODEC_KERNEL Partial sync_finish_subtracting(const Scalars& s, const Arrays& arrays,
                                                    std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V v = load(a.v, at);
    const V d = denominator(s, v);
    const V w = load(a.w, at);
    const V p = hn::Div(local_momentum<false>(s, a, at, v), d);
    const V step = set(s.step);
    const V moved = hn::Sub(w, hn::Mul(step, decayed(p, s.weight_decay, w)));
    const V z = hn::Sub(load(a.z, at), hn::Mul(step, decayed(p, s.accumulated_decay, w)));
    const V x = load(a.x, at);
    store(hn::Neg(hn::Div(x, set(s.window))), a.m, at);
    store(hn::Add(hn::Sub(moved, z), hn::Div(x, d)), a.w, at);
    store(hn::Zero(F32()), a.z, at);
  });
}

ONEBIT_CODEC_KERNEL Partial exchanged_norm(const Scalars&, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    const V x = load(a.x, at);
    lanes.add_first(i, hn::Mul(x, x));
  });
}

template <bool kMasked>
ONEBIT_CODEC_KERNEL Partial norms(const Scalars&, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    V m = load(a.m, at);
    if constexpr (kMasked) m = live<true>(m, load(a.v, at));
    const V w = load(a.w, at);
    lanes.add_first(i, hn::Mul(m, m));
    lanes.add_second(i, hn::Mul(w, w));
  });
}

ONEBIT_CODEC_KERNEL Partial variance_norm(const Scalars&, const Arrays& arrays, std::size_t n) noexcept {
  Partial sums = run(arrays, n, [](const Arrays& a, std::size_t at, std::size_t i, Lanes& lanes) HWY_ATTR {
    const V v = load(a.v, at);
    lanes.add_first(i, v);
    lanes.add_second(i, hn::IfThenElseZero(hn::Gt(v, hn::Zero(F32())), set(1)));
  });
  sums.second = static_cast<float>(n) - sums.second;
  return sums;
}

ONEBIT_CODEC_KERNEL Partial correct(const Scalars& s, const Arrays& arrays, std::size_t n) noexcept {
  return run(arrays, n, [s](const Arrays& a, std::size_t at, std::size_t, Lanes&) HWY_ATTR {
    const V root = set(s.root_scale);
    store(hn::Mul(load(a.m, at), set(s.momentum_factor)), a.m, at);
    store(hn::Mul(hn::Mul(load(a.v, at), root), root), a.v, at);
  });
}

// ---- types ----

template <class Type>
HWY_INLINE void widen_as(const std::uint16_t* from, std::size_t n, float* to) {
  const std::size_t step = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + step <= n; i += step) store(Type::load(from + i), to, i);
  if (i == n) return;
  std::uint16_t narrow[Padded::kMost] = {};
  float wide[Padded::kMost];
  std::memcpy(narrow, from + i, (n - i) * sizeof *from);
  store(Type::load(narrow), wide, 0);
  std::memcpy(to + i, wide, (n - i) * sizeof *to);
}

template <class Type>
HWY_INLINE void narrow_as(const float* from, std::size_t n, std::uint16_t* to) {
  const std::size_t step = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + step <= n; i += step) Type::store(load(from, i), to + i);
  if (i == n) return;
  float wide[Padded::kMost] = {};
  std::uint16_t narrow[Padded::kMost];
  std::memcpy(wide, from + i, (n - i) * sizeof *from);
  Type::store(load(wide, 0), narrow);
  std::memcpy(to + i, narrow, (n - i) * sizeof *to);
}

ONEBIT_CODEC_KERNEL void widen(DataType type, const void* from, std::size_t n, float* to) noexcept {
  if (type == DataType::kFloat16)
    return widen_as<codec::HWY_NAMESPACE::Float16>(static_cast<const std::uint16_t*>(from), n, to);
  if (type == DataType::kBFloat16)
    return widen_as<codec::HWY_NAMESPACE::BFloat16>(static_cast<const std::uint16_t*>(from), n, to);
  std::memcpy(to, from, n * sizeof(float));
}

ONEBIT_CODEC_KERNEL void narrow(DataType type, const float* from, std::size_t n, void* to) noexcept {
  if (type == DataType::kFloat16)
    return narrow_as<codec::HWY_NAMESPACE::Float16>(from, n, static_cast<std::uint16_t*>(to));
  if (type == DataType::kBFloat16)
    return narrow_as<codec::HWY_NAMESPACE::BFloat16>(from, n, static_cast<std::uint16_t*>(to));
  std::memcpy(to, from, n * sizeof(float));
}

}  // namespace onebit::optimizer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
