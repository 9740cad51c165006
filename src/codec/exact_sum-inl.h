// The exact reduction for a SIMD target: for each vector, the sum over the pieces in their order.
// Included by kernels.cc alone, once a target. Pure functions, any thread.

HWY_BEFORE_NAMESPACE();
namespace onebit::codec::HWY_NAMESPACE {

/// A type that is summed as it is. Float16 and BFloat16 are summed in fp32.
template <typename T>
struct Native {
  using Element = T;
  static HWY_INLINE auto load(const T* x) { return hn::LoadU(hn::ScalableTag<T>(), x); }
  static HWY_INLINE void store(hn::Vec<hn::ScalableTag<T>> value, T* y) {
    hn::StoreU(value, hn::ScalableTag<T>(), y);
  }
};

/// out = the sum of the pieces, ended by `end` (the division of an average).
template <class Type, class End>
HWY_INLINE void sum_pieces(std::span<const void* const> pieces, std::size_t n, std::size_t step, void* out,
                           End end) {
  using T = typename Type::Element;
  const auto piece = [&](std::size_t r) { return static_cast<const T*>(pieces[r]); };
  T* const y = static_cast<T*>(out);
  std::size_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    auto s0 = Type::load(piece(0) + i);
    auto s1 = Type::load(piece(0) + i + step);
    auto s2 = Type::load(piece(0) + i + 2 * step);
    auto s3 = Type::load(piece(0) + i + 3 * step);
    for (std::size_t r = 1; r < pieces.size(); ++r) {
      const T* const x = piece(r) + i;
      s0 = hn::Add(s0, Type::load(x));
      s1 = hn::Add(s1, Type::load(x + step));
      s2 = hn::Add(s2, Type::load(x + 2 * step));
      s3 = hn::Add(s3, Type::load(x + 3 * step));
    }
    Type::store(end(s0), y + i);
    Type::store(end(s1), y + i + step);
    Type::store(end(s2), y + i + 2 * step);
    Type::store(end(s3), y + i + 3 * step);
  }
  while (i < n) {  // the end, a vector at a time through padded buffers
    const std::size_t count = std::min(step, n - i);
    T term[kUnit] = {};
    std::memcpy(term, piece(0) + i, count * sizeof(T));
    auto sum = Type::load(term);
    for (std::size_t r = 1; r < pieces.size(); ++r) {
      std::memcpy(term, piece(r) + i, count * sizeof(T));
      sum = hn::Add(sum, Type::load(term));
    }
    Type::store(end(sum), term);
    std::memcpy(y + i, term, count * sizeof(T));
    i += count;
  }
}

template <class Type, typename T>
HWY_INLINE void sum_floats(ReduceOp op, std::span<const void* const> pieces, std::size_t n, void* out) {
  const hn::ScalableTag<T> d;
  if (op == ReduceOp::kAvg) {
    const auto factor = hn::Set(d, T{1} / static_cast<T>(pieces.size()));
    sum_pieces<Type>(pieces, n, hn::Lanes(d), out,
                     [factor](auto sum) HWY_ATTR { return hn::Mul(sum, factor); });
  } else {
    sum_pieces<Type>(pieces, n, hn::Lanes(d), out, [](auto sum) HWY_ATTR { return sum; });
  }
}

template <typename T>
HWY_INLINE void sum_integers(std::span<const void* const> pieces, std::size_t n, void* out) {
  sum_pieces<Native<T>>(pieces, n, hn::Lanes(hn::ScalableTag<T>()), out,
                        [](auto sum) HWY_ATTR { return sum; });
}

ONEBIT_CODEC_KERNEL void exact_sum_kernel(DataType type, ReduceOp op, std::span<const void* const> pieces,
                                          std::size_t n, void* out) noexcept {
  switch (type) {
    case DataType::kInt32:
      return sum_integers<std::uint32_t>(pieces, n, out);
    case DataType::kInt64:
      return sum_integers<std::uint64_t>(pieces, n, out);
    case DataType::kFloat32:
      return sum_floats<Native<float>, float>(op, pieces, n, out);
    case DataType::kFloat64:
      return sum_floats<Native<double>, double>(op, pieces, n, out);
    case DataType::kFloat16:
      return sum_floats<Float16, float>(op, pieces, n, out);
    case DataType::kBFloat16:
      return sum_floats<BFloat16, float>(op, pieces, n, out);
  }
}

}  // namespace onebit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
