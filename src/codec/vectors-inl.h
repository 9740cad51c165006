// What the SIMD kernels share: loading z, masks to and from bits, the two passes over a block.
//
// A *row* is 256 elements, one a lane of a sum. A *unit* is 64: whole vectors, whole cache lines and one
// 64-bit word of bits on every target. Ends shorter than a vector or a unit go through a buffer padded with
// zeros: a padded element adds +0 to a lane that is never -0, which changes nothing.
//
// Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using VF32 = hn::Vec<F32>;
using MF32 = hn::Mask<F32>;

/// The lanes of a sum, and the elements of a row.
constexpr std::size_t kLanes = 256;
constexpr std::size_t kUnit = 64;

/// Brings `count` elements into the second-level cache. The first level is left to the block at hand.
template <typename T>
HWY_INLINE void prefetch(const T* p, std::size_t count) {
  constexpr std::size_t kLine = 64 / sizeof(T);
  for (std::size_t i = 0; i < count; i += kLine) __builtin_prefetch(p + i, /*write=*/0, /*locality=*/2);
}

// ---- element types ----

struct Float32 {
  using Element = float;
  static HWY_INLINE VF32 load(const float* x) { return hn::LoadU(F32(), x); }
};

struct BFloat16 {
  using Element = std::uint16_t;
  static HWY_INLINE VF32 load(const std::uint16_t* x) {
    const hn::Rebind<std::uint16_t, F32> narrow;
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(narrow, x))));
  }
  static HWY_INLINE void store(VF32 value, std::uint16_t* y) {
    const hn::Rebind<std::uint16_t, F32> narrow;
    const U32 u;
    const auto bits = hn::BitCast(u, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff))));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(value));
    hn::StoreU(hn::TruncateTo(narrow, hn::IfThenElse(is_nan, hn::Set(u, kBFloat16NanBits), rounded)), narrow,
               y);
  }
};

struct Float16 {
  using Element = std::uint16_t;
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  // No F16C: a half's bits in place of a float's are the number times 2^-112, subnormals too.
  static HWY_INLINE VF32 load(const std::uint16_t* x) {
    const hn::Rebind<std::uint16_t, F32> narrow;
    const F32 f;
    const U32 u;
    const auto bits = hn::PromoteTo(u, hn::LoadU(narrow, x));
    const auto magnitude = hn::And(bits, hn::Set(u, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    const auto scaled = hn::Mul(hn::BitCast(f, hn::ShiftLeft<13>(magnitude)), hn::Set(f, 0x1p112f));
    const auto not_finite = hn::Ge(scaled, hn::Set(f, 65536.0f));
    const auto exponent = hn::IfThenElseZero(hn::RebindMask(u, not_finite), hn::Set(u, 0x7f800000));
    return hn::BitCast(f, hn::Or(hn::Or(hn::BitCast(u, scaled), exponent), sign));
  }
  static HWY_INLINE void store(VF32 value, std::uint16_t* y) {
    const hn::Rebind<std::uint16_t, F32> narrow;
    const F32 f;
    const U32 u;
    const auto bits = hn::BitCast(u, value);
    const auto magnitude = hn::And(bits, hn::Set(u, 0x7fffffff));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    // Subnormals: adding 0.5 leaves the multiple of 2^-24, rounded by the addition, in the low bits.
    const auto half = hn::Set(f, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(u, hn::Add(hn::BitCast(f, magnitude), half)), hn::BitCast(u, half));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 1));
    const auto rebias = hn::Set(u, 0xfffu - (112u << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, rebias)));
    const auto size = hn::BitCast(f, magnitude);
    auto result = hn::IfThenElse(hn::RebindMask(u, hn::Lt(size, hn::Set(f, 0x1p-14f))), subnormal, normal);
    result =
        hn::IfThenElse(hn::RebindMask(u, hn::Ge(size, hn::Set(f, 65520.0f))), hn::Set(u, 0x7c00), result);
    result = hn::Or(result, sign);
    result = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(value)), hn::Set(u, kHalfNanBits), result);
    hn::StoreU(hn::TruncateTo(narrow, result), narrow, y);
  }
#else
  static HWY_INLINE VF32 load(const std::uint16_t* x) {
    const hn::Rebind<hwy::float16_t, F32> narrow;
    return hn::PromoteTo(F32(), hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(x)));
  }
  static HWY_INLINE void store(VF32 value, std::uint16_t* y) {
    const hn::Rebind<hwy::float16_t, F32> narrow;
    const F32 f;
    const auto nan = hn::BitCast(f, hn::Set(U32(), kNanBits));
    const auto canonical = hn::IfThenElse(hn::IsNaN(value), nan, value);
    hn::StoreU(hn::DemoteTo(narrow, canonical), narrow, reinterpret_cast<hwy::float16_t*>(y));
  }
#endif
};

// ---- masks and bits ----

/// The mask of the vector at element i, a multiple of its lanes, of an array of bits.
HWY_INLINE MF32 load_bits(const std::uint8_t* bits, std::size_t i) {
  const F32 f;
  const std::size_t n = hn::Lanes(f);
  std::uint8_t local[8] = {};
  if (n >= 8) {
    std::memcpy(local, bits + i / 8, n / 8);
  } else {
    local[0] = static_cast<std::uint8_t>(bits[i / 8] >> (i % 8));
  }
  return hn::LoadMaskBits(f, local);
}

/// A mask as bits: lane l is bit l.
HWY_INLINE std::uint64_t bits_of(MF32 mask) {
  std::uint8_t local[8] = {};
  hn::StoreMaskBits(F32(), mask, local);
  std::uint64_t bits;
  std::memcpy(&bits, local, 8);
  return bits;
}

// ---- sources of z ----

/// z = x + e, in block mode and whole mode alike.
template <class Type>
struct Compensated {
  using Element = typename Type::Element;
  const Element* x;
  const float* error;

  HWY_INLINE VF32 z(std::size_t i) const { return hn::Add(Type::load(x + i), hn::LoadU(F32(), error + i)); }
  HWY_INLINE Compensated from(std::size_t i) const { return {x + i, error + i}; }
  /// Brings in what the first pass reads some rows after row i: the processor's own prefetchers stop at each
  /// page of 4 KiB. Measured: closer leaves the page's start exposed, farther pushes the block out of the
  /// first cache.
  HWY_INLINE void prefetch_ahead(std::size_t i) const {
    constexpr std::size_t kAhead = sizeof(Element) == 4 ? 512 : 384;
    prefetch(x + i + kAhead, kLanes);
    prefetch(error + i + kAhead, kLanes);
  }
  struct Padded {
    Element x[kUnit] = {};
    float error[kUnit] = {};
  };
  HWY_INLINE Compensated pad(std::size_t i, std::size_t count, Padded& padded) const {
    std::memcpy(padded.x, x + i, count * sizeof(Element));
    std::memcpy(padded.error, error + i, count * sizeof(float));
    return {padded.x, padded.error};
  }
};

/// z that has been computed before.
struct Computed {
  const float* values;

  HWY_INLINE VF32 z(std::size_t i) const { return hn::LoadU(F32(), values + i); }
  HWY_INLINE Computed from(std::size_t i) const { return {values + i}; }
  HWY_INLINE void prefetch_ahead(std::size_t) const {}  // it is in the caches

  struct Padded {
    float values[kUnit] = {};
  };
  HWY_INLINE Computed pad(std::size_t i, std::size_t count, Padded& padded) const {
    std::memcpy(padded.values, values + i, count * sizeof(float));
    return {padded.values};
  }
};

// ---- the sum of a block ----

template <Scale kScale>
HWY_INLINE VF32 term(VF32 z) {
  return kScale == Scale::kRms ? hn::Mul(z, z) : hn::Abs(z);
}

/// The 256 lanes of a sum.
struct Lanes256 {
  HWY_ALIGN float lane[kLanes];

  HWY_INLINE void clear() { std::memset(lane, 0, sizeof lane); }
  /// Adds the vector of terms of the elements that begin at lane l.
  HWY_INLINE void add(std::size_t l, VF32 terms) {
    const F32 f;
    hn::Store(hn::Add(hn::Load(f, lane + l), terms), f, lane + l);
  }
  HWY_INLINE float fold() {
    const F32 f;
    const std::size_t n = hn::Lanes(f);
    std::size_t half = kLanes / 2;
    for (; half >= n; half /= 2) {
      for (std::size_t l = 0; l < half; l += n) {
        hn::Store(hn::Add(hn::Load(f, lane + l), hn::Load(f, lane + l + half)), f, lane + l);
      }
    }
    for (; half >= 1; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    return lane[0];
  }
};

/// Adds the row that begins at element i.
template <Scale kScale, class Source>
HWY_INLINE void sum_row(const Source& source, std::size_t i, Lanes256& sum) {
  for (std::size_t l = 0; l < kLanes; l += hn::Lanes(F32())) sum.add(l, term<kScale>(source.z(i + l)));
}

/// Adds elements 0..n of a block.
template <Scale kScale, class Source>
HWY_INLINE void sum_block(const Source& source, std::size_t n, Lanes256& sum) {
  const std::size_t step = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    source.prefetch_ahead(i);
    sum_row<kScale>(source, i, sum);
  }
  for (; i + step <= n; i += step) sum.add(i % kLanes, term<kScale>(source.z(i)));
  if (i < n) {
    typename Source::Padded padded;
    sum.add(i % kLanes, term<kScale>(source.pad(i, n - i, padded).z(0)));
  }
}

inline float block_scale(Scale rule, float sum, std::size_t n) {
  if (!std::isfinite(sum)) return std::bit_cast<float>(kNanBits);
  const float mean = sum / static_cast<float>(n);
  return rule == Scale::kRms ? std::sqrt(mean) : mean;
}

// ---- the second pass: bits and new errors ----

inline void store_scale(std::byte* scales, std::size_t block, float scale) {
  std::memcpy(scales + 4 * block, &scale, 4);
}

inline float load_scale(const std::byte* scales, std::size_t block) {
  float scale;
  std::memcpy(&scale, scales + 4 * block, 4);
  return scale;
}

/// A sum as `sums` and `accumulate` write it.
inline float canonical(float sum) {
  return std::isnan(sum) ? std::bit_cast<float>(kNanBits) : sum;
}

/// Sets bits 0..n; the unused bits of the last byte are 0.
inline void set_all_bits(std::size_t n, std::uint8_t* bits) {
  std::memset(bits, 0xff, n / 8);
  if (n % 8 != 0) bits[n / 8] = static_cast<std::uint8_t>((1u << n % 8) - 1);
}

/// Codes the unit that begins at `i` with +-scale.
template <class Source>
HWY_INLINE void quantize_unit(const Source& source, std::size_t i, VF32 plus, VF32 minus, float* error,
                              std::uint8_t* bits) {
  const F32 f;
  std::uint64_t negatives = 0;
  for (std::size_t v = 0; v < kUnit; v += hn::Lanes(f)) {
    const auto z = source.z(i + v);
    const auto negative = hn::Lt(z, hn::Zero(f));
    hn::StoreU(hn::Sub(z, hn::IfThenElse(negative, minus, plus)), f, error + v);
    negatives |= bits_of(negative) << v;
  }
  const std::uint64_t word = ~negatives;
  std::memcpy(bits, &word, sizeof word);
}

/// Codes elements 0..n of a block. A NaN scale sets all bits and leaves the errors alone. `before_row` is
/// called with the first element of each row.
template <class Source, class BeforeRow>
HWY_INLINE void quantize_block(const Source& source, std::size_t n, float scale, float* error,
                               std::uint8_t* bits, BeforeRow before_row) {
  if (std::isnan(scale)) return set_all_bits(n, bits);
  const F32 f;
  const auto plus = hn::Set(f, scale);
  const auto minus = hn::Neg(plus);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    before_row(i);
    for (std::size_t l = 0; l < kLanes; l += kUnit) {
      quantize_unit(source, i + l, plus, minus, error + i + l, bits + (i + l) / 8);
    }
  }
  for (; i + kUnit <= n; i += kUnit) quantize_unit(source, i, plus, minus, error + i, bits + i / 8);
  if (i < n) {
    typename Source::Padded padded;
    float new_error[kUnit];
    std::uint8_t new_bits[kUnit / 8];
    quantize_unit(source.pad(i, n - i, padded), 0, plus, minus, new_error, new_bits);
    std::memcpy(error + i, new_error, (n - i) * sizeof(float));
    const std::size_t last = (n - i) / 8;
    if (n % 8 != 0) new_bits[last] = static_cast<std::uint8_t>(new_bits[last] & ((1u << n % 8) - 1));
    std::memcpy(bits + i / 8, new_bits, bit_bytes(n - i));
  }
}

}  // namespace onebit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
